//! What may have ended a pair: a fault that has touched it, until that is healed.

use elver_verbs::Time;

use crate::end::End;
use crate::world::{EndIx, World, peer_of};

impl World {
    /// Whether the network or the other end may have ended a pair.
    pub(crate) fn explains(&self, end: EndIx) -> bool {
        let (here, there) = (&self.ends[end], &self.ends[peer_of(end)]);
        if there.is_over() || there.given_back {
            return true;
        }
        if self.is_well(here.node) {
            return false;
        }
        let disturbed = |to| self.cluster.net.disturbed(here.node, to);
        // Who connects may ask the meta server for the other.
        disturbed(there.node)
            || !here.is_up() && disturbed(0)
            || self.was_unanswered(here, there)
            || self.leases_differ(here.node)
            || self.ends.iter().enumerate().any(|(at, gone)| {
                gone.vanished && shares((here, there), self.ends[peer_of(at)].node, gone.node)
            })
    }

    /// Whether a node's processes hear now what came when all faults had healed, and all that they had spoilt was over.
    fn is_well(&self, node: usize) -> bool {
        self.well_at.is_some_and(|at| self.heard_since(node) > at)
    }

    /// Whether answers that were withheld may have cost an end the retries of what it has under way.
    fn was_unanswered(&self, here: &End, there: &End) -> bool {
        let (since, patience_ns) = (self.heard_since(here.node), self.plan.retries_ns());
        self.withheld.iter().any(|(&(from, to), until)| {
            since <= until.saturating_add_ns(patience_ns) && shares((here, there), to, from)
        })
    }

    /// Whether what was under way when all clocks jumped may have had less time than it needs, or had when that came which
    /// is heard now. One that jumps alone counts as a disturbance of all that goes to its node and comes from it.
    pub(crate) fn leases_differ(&self, node: usize) -> bool {
        self.fate.apart_until.is_some_and(|until| self.heard_since(node) <= until)
    }

    /// Since when what a node's processes hear now has been there.
    pub(crate) fn heard_since(&self, node: usize) -> Time {
        self.cluster.nodes[node].deaf.map_or(self.cluster.now, |deaf| deaf.since)
    }

    /// Whether a node's processes may have left so much that their next WR has no room: what is under way and what was not
    /// taken, of ends that are there, and of those that have gone as long as it takes theirs to end.
    pub(crate) fn has_no_room(&self, node: usize) -> bool {
        let boot = self.cluster.nodes[node].boot;
        let since = self.heard_since(node);
        let going_ns = 2 * self.plan.retries_ns();
        let under_way = self.ends.iter().filter(|end| {
            let is_going = end.over_at.is_none_or(|at| at.saturating_add_ns(going_ns) >= since);
            (end.node, end.boot) == (node, boot) && is_going
        });
        under_way.map(End::left).sum::<u64>() >= u64::from(self.plan.strange.completions)
    }
}

/// Whether what one node cannot do to another breaks what an end has under way: the queue pair of such a WR is others' as well,
/// of whose nobody may know then whether they were executed. It is a DCI, by which that node reaches all, or an RC QP, by which
/// each of the two reaches the other.
fn shares((here, there): (&End, &End), does: usize, to: usize) -> bool {
    here.node == does || here.node == to && there.node == does
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::end::Phase;

    /// Three nodes, and a pair between the last two of them.
    fn pair() -> World {
        let world = |seed| World::new(seed, &Options::default(), Some(&[])).unwrap();
        let mut world = (1..100).map(world).find(|world| world.plan.nodes == 3).unwrap();
        world.add_pair().unwrap();
        (world.ends[0].node, world.ends[1].node) = (1, 2);
        world
    }

    /// A connect waits for seconds, and yet none fails for what has healed meanwhile: who is asked has its time to answer still.
    #[test]
    fn what_has_healed_excuses_no_connect_of_before() {
        let mut world = pair();
        world.cluster.net.disturb(1);
        for phase in [Phase::Connecting, Phase::Up] {
            world.ends[0].phase = phase;
            world.well_at = None;
            assert!(world.explains(0));
            world.well_at = Some(world.now());
            assert!(world.explains(0), "what it spoilt may be heard now");
            world.cluster.now = world.now().saturating_add_ns(1);
            assert!(!world.explains(0));
        }
    }

    /// The meta server is asked by who connects alone.
    #[test]
    fn a_meta_server_that_is_cut_off_ends_no_pair_of_others() {
        let mut world = pair();
        world.cluster.net.disturb(0);
        world.ends[0].phase = Phase::Connecting;
        assert!(world.explains(0));
        world.ends[0].phase = Phase::Up;
        assert!(!world.explains(0));
    }
}
