//! `warm` calls: peers that a client wants at hand before it connects.

use alloc::vec::Vec;

use crate::ClientId;

/// Most `warm` calls that are under way.
pub(crate) const WARMS_MAX: usize = 256;
/// Of these, the ones of an account.
pub(crate) const WARMS_OF_ACCOUNT_MAX: usize = 64;

/// The `warm` calls that are under way, each in a place that is its number.
#[derive(Debug, Default)]
pub(crate) struct Warms(Vec<Option<Warm>>);

/// A `warm` call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Warm {
    pub(crate) client: ClientId,
    account: u64,
    pub(crate) token: u64,
    left: u32,
    pub(crate) ready: u32,
    pub(crate) failed: u32,
}

impl Warms {
    /// A call begins, of a client and its account, for so many peers. Returns its number.
    ///
    /// # Errors
    ///
    /// So many are under way, of all or of the account's, and no more may be.
    pub(crate) fn begin(
        &mut self,
        (client, account): (ClientId, u64),
        token: u64,
        left: u32,
    ) -> Result<u32, usize> {
        let of_account = self.0.iter().flatten().filter(|warm| warm.account == account).count();
        if of_account >= WARMS_OF_ACCOUNT_MAX {
            return Err(WARMS_OF_ACCOUNT_MAX);
        }
        let warm = Some(Warm { client, account, token, left, ready: 0, failed: 0 });
        match self.0.iter().position(Option::is_none) {
            Some(at) => {
                self.0[at] = warm;
                Ok(at as u32)
            }
            None if self.0.len() >= WARMS_MAX => Err(WARMS_MAX),
            None => {
                self.0.push(warm);
                Ok(self.0.len() as u32 - 1)
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
        let [first, second] = [2, 1].map(|left| warms.begin((ClientId(7), 3), 9, left).unwrap());
        assert_eq!(warms.hear(first, true), None);
        assert_eq!((warms.hear(second, true).map(|warm| warm.ready), warms.len()), (Some(1), 1));
        let ended =
            Warm { client: ClientId(7), account: 3, token: 9, left: 0, ready: 1, failed: 1 };
        assert_eq!(warms.hear(first, false), Some(ended));
        assert_eq!((warms.begin((ClientId(8), 3), 1, 1), warms.len()), (Ok(first), 1));
    }

    /// One that called often, for peers that do not answer, kept all others from it.
    #[test]
    fn so_many_are_under_way_at_most_and_so_many_of_an_account() {
        let mut warms = Warms::default();
        let mut begin = |account| warms.begin((ClientId(1), account), 0, 1);
        for at in 0..WARMS_OF_ACCOUNT_MAX as u32 {
            assert_eq!(begin(1), Ok(at));
        }
        assert_eq!(begin(1), Err(WARMS_OF_ACCOUNT_MAX));
        for at in WARMS_OF_ACCOUNT_MAX as u32..WARMS_MAX as u32 {
            assert_eq!(begin(u64::from(at)), Ok(at));
        }
        assert_eq!(begin(2), Err(WARMS_MAX));
        assert!(warms.hear(0, true).is_some());
        assert_eq!(warms.begin((ClientId(1), 1), 0, 1), Ok(0));
    }
}
