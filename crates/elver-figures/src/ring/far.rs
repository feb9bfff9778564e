//! The NUMA node that is far from a thread.

use std::fs::read_to_string;

use elver_portal::memfd::{self, Pages};
use elver_portal::numa;

/// Why memory cannot be laid far from a thread here, if it cannot.
pub(crate) fn obstacle() -> Option<&'static str> {
    let [_, .., last] = numa::nodes() else { return Some("the machine has one NUMA node") };
    let probe = memfd::create_near("elver-bench", 4_096, Pages::Small, Some(*last));
    let may = probe.is_ok_and(|(_, is_near)| is_near);
    (!may).then_some("the system does not let this process say where memory lies (mbind)")
}

/// Of the nodes that have memory, the one farthest from this thread's.
pub(super) fn farthest() -> Option<u16> {
    let here = numa::here()?;
    let directory = "/sys/devices/system/node";
    let distances = read_to_string(format!("{directory}/node{here}/distance")).unwrap_or_default();
    among(here, numa::nodes(), &distances)
}

/// The distances are those of all nodes in their order; where some have no memory nobody knows whose they are.
fn among(here: u16, nodes: &[u16], distances: &str) -> Option<u16> {
    let distances: Vec<u32> =
        distances.split_whitespace().map_while(|one| one.parse().ok()).collect();
    let others = nodes.iter().enumerate().filter(|(_, node)| **node != here);
    let distance = |at: usize| if distances.len() == nodes.len() { distances[at] } else { 0 };
    others.max_by_key(|(at, _)| distance(*at)).map(|(_, node)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farthest_is_another_one() {
        assert_eq!(among(0, &[0], "10\n"), None);
        assert_eq!(among(0, &[0, 1], "10 21\n"), Some(1));
        assert_eq!(among(1, &[0, 1], "21 10\n"), Some(0));
        assert_eq!(among(0, &[0, 1, 2], "10 32 21\n"), Some(1));
        // One of these has no memory, or the system does not tell.
        assert_eq!(among(0, &[0, 2], "10 32 21\n"), Some(2));
        assert_eq!(among(2, &[0, 2], ""), Some(0));
    }
}
