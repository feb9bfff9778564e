//! `warm` calls: peers that a client wants at hand before it connects.

use alloc::vec::Vec;

use crate::ClientId;

/// Most `warm` calls that are under way.
pub(crate) const WARMS_MAX: usize = 256;

/// The `warm` calls that are under way, each in a place that is its number.
#[derive(Debug, Default)]
pub(crate) struct Warms(Vec<Option<Warm>>);

/// A `warm` call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Warm {
    pub(crate) client: ClientId,
    pub(crate) token: u64,
    left: u32,
    pub(crate) ready: u32,
    pub(crate) failed: u32,
}

impl Warms {
    /// A call begins, for so many peers. Returns its number; none when too many are under way.
    pub(crate) fn begin(&mut self, client: ClientId, token: u64, left: u32) -> Option<u32> {
        let warm = Some(Warm { client, token, left, ready: 0, failed: 0 });
        match self.0.iter().position(Option::is_none) {
            Some(at) => {
                self.0[at] = warm;
                Some(at as u32)
            }
            None if self.0.len() >= WARMS_MAX => None,
            None => {
                self.0.push(warm);
                Some(self.0.len() as u32 - 1)
            }
        }
    }

    /// One of a call's peers is at hand, or cannot be. Returns the call if that was the last one.
    pub(crate) fn hear(&mut self, warm: u32, ok: bool) -> Option<Warm> {
        let Some(slot) = self.0.get_mut(warm as usize) else {
            bug!("a warm call is unknown");
            return None;
        };
        let Some(entry) = slot else {
            bug!("a warm call goes on that has ended");
            return None;
        };
        count_off!(entry.left, 1);
        if ok {
            entry.ready += 1;
        } else {
            entry.failed += 1;
        }
        slot.take_if(|warm| warm.left == 0)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_with_its_last_peer_and_gives_its_number_back() {
        let mut warms = Warms::default();
        let [first, second] = [2, 1].map(|left| warms.begin(ClientId(7), 9, left).unwrap());
        assert_eq!(warms.hear(first, true), None);
        assert_eq!((warms.hear(second, true).map(|warm| warm.ready), warms.len()), (Some(1), 1));
        let ended = Warm { client: ClientId(7), token: 9, left: 0, ready: 1, failed: 1 };
        assert_eq!(warms.hear(first, false), Some(ended));
        assert_eq!((warms.begin(ClientId(8), 1, 1), warms.len()), (Some(first), 1));
    }

    #[test]
    fn so_many_are_under_way_at_most() {
        let mut warms = Warms::default();
        for at in 0..WARMS_MAX as u32 {
            assert_eq!(warms.begin(ClientId(1), 0, 1), Some(at));
        }
        assert_eq!(warms.begin(ClientId(1), 0, 1), None);
    }
}
