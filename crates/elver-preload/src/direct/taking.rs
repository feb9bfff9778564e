//! How what peers were told of is taken back from them, who may be reaching for it.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::hub::Hub;
use super::table::Name;

/// How long taking back waits for a process that is reaching for it. A copy takes a second at most.
const REVOCATION: Duration = Duration::from_secs(5);
/// Looks at such a process before the processor is left to it, and before a sleep of some length.
const SPINS: u32 = 1 << 6;
const YIELDS: u32 = 1 << 10;
const LOOK: Duration = Duration::from_micros(100);

impl Hub {
    /// Takes back from all peers what was told of something, and returns it: nobody reaches for it any
    /// more. Where a process that is in the midst of a copy does not come to its end, it is `EBUSY`: then
    /// peers know nothing of it, and it may be asked for again.
    pub(crate) fn take_back(&self, name: Name) -> Result<Option<[u64; 6]>, c_int> {
        self.take_back_within(name, REVOCATION)
    }

    fn take_back_within(&self, name: Name, bound: Duration) -> Result<Option<[u64; 6]>, c_int> {
        let told = self.table.take_back(name);
        let peers = self.peers().clone();
        let begun: Vec<_> = peers.iter().map(|peer| (peer, peer.view.epoch())).collect();
        let mut deadline = None;
        for (peer, epoch) in begun.into_iter().filter(|(_, epoch)| epoch % 2 == 1) {
            let mut looks = 0_u32;
            while peer.view.epoch() == epoch {
                looks = looks.saturating_add(1);
                if looks < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                if peer.has_ended() {
                    break;
                }
                if looks < YIELDS {
                    std::thread::yield_now();
                    continue;
                }
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + bound);
                if Instant::now() >= deadline {
                    return Err(libc::EBUSY);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::hub::watch::tests::two;
    use super::*;

    #[test]
    fn who_is_inside_is_waited_for() {
        let (first, second, peer) = two(201);
        let name = Name::Region(0x1207);
        assert!(second.table.tell(name, [9; 6]));
        let left = AtomicBool::new(false);
        let inside = first.table.enter();
        assert_eq!(peer.view.look_up(name), Some([9; 6]));
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| {
                let told = second.take_back(name);
                (told, left.load(Ordering::SeqCst))
            });
            // It is gone for who goes in, and who is in is still waited for.
            while peer.view.look_up(name).is_some() {
                std::thread::yield_now();
            }
            left.store(true, Ordering::SeqCst);
            drop(inside);
            assert_eq!(taking.join().unwrap(), (Ok(Some([9; 6])), true));
        });
        assert_eq!(second.take_back(name), Ok(None));
    }

    #[test]
    fn who_does_not_leave_is_waited_for_no_longer_than_that() {
        let (first, second, peer) = two(202);
        let name = Name::Qp(0x12);
        assert!(second.table.tell(name, [9; 6]));
        let inside = first.table.enter();
        let bound = Duration::from_millis(20);
        for _ in 0..2 {
            assert_eq!(second.take_back_within(name, bound), Err(libc::EBUSY));
            assert_eq!(peer.view.look_up(name), None);
        }
        drop(inside);
        assert_eq!(second.take_back_within(name, bound), Ok(None));
    }
}
