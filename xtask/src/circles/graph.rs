//! Circles of a graph.

use std::collections::{BTreeMap, BTreeSet};

/// Sets of nodes each of which reaches all others of its set, largest first; those of one node left
/// out.
pub(super) fn circles<N: Ord + Clone>(arrows: &BTreeMap<N, Vec<N>>) -> Vec<Vec<N>> {
    let reached: BTreeMap<&N, BTreeSet<&N>> =
        arrows.keys().map(|from| (from, reached(arrows, from))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, to) in &reached {
        let back = |node: &&&N| reached.get(**node).is_some_and(|there| there.contains(from));
        let circle: Vec<N> = to.iter().filter(back).map(|node| (*node).clone()).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// What can be reached from a node.
fn reached<'a, N: Ord>(arrows: &'a BTreeMap<N, Vec<N>>, from: &N) -> BTreeSet<&'a N> {
    let mut found = BTreeSet::new();
    let mut left: Vec<&N> = arrows.get(from).into_iter().flatten().collect();
    while let Some(node) = left.pop() {
        if found.insert(node) {
            left.extend(arrows.get(node).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_told_apart() {
        let arrows =
            [(1, vec![2]), (2, vec![3]), (3, vec![2, 4]), (4, vec![5]), (5, vec![6]), (6, vec![4])];
        assert_eq!(circles(&BTreeMap::from(arrows)), [vec![4, 5, 6], vec![2, 3]]);
    }
}
