//! Faults of what a program posts, on demand: a share of its READs, WRITEs and atomics has a wrong key, and after a
//! share of what it sends the queue pair fails. Which ones is a matter of the seed, and of the order of posts.

use elver_random::Rng;
use elver_soft::SoftDevice;
use elver_verbs::{Device, PostError, Qp, QpAttr, QpState, RemoteAddr, SendOp, SendWr};

/// Shares are of a million.
const WHOLE: u64 = 1_000_000;
/// What a wrong key differs by: never by nothing.
const WRONG: u32 = 0x00de_ad00;

/// What is asked for, of a million posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) wrong_keys: u32,
    pub(crate) failures: u32,
    pub(crate) seed: u64,
}

/// What befalls posts.
pub(crate) struct Posts {
    shares: Shares,
    rng: Rng,
    /// Queue pairs that failed so, and of which nobody was told.
    pub(crate) failed: Vec<Qp>,
}

impl Posts {
    /// Nothing if nothing is asked for.
    pub(crate) fn new(shares: Shares) -> Option<Box<Posts>> {
        let any = shares.wrong_keys > 0 || shares.failures > 0;
        any.then(|| Box::new(Posts { shares, rng: Rng::new(shares.seed), failed: Vec::new() }))
    }

    fn draws(&mut self, share: u32) -> bool {
        share > 0 && self.rng.next_u64() % WHOLE < u64::from(share)
    }

    /// Posts one, with what befalls it.
    pub(crate) fn post(
        &mut self,
        device: &mut SoftDevice,
        qp: Qp,
        wr: &SendWr<'_>,
    ) -> Result<(), (usize, PostError)> {
        let op = match remote(wr.op) {
            Some(_) if self.draws(self.shares.wrong_keys) => with_wrong_key(wr.op),
            _ => wr.op,
        };
        device.post_send(qp, &[SendWr { op, ..*wr }])?;
        if self.draws(self.shares.failures) {
            let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
            // One that has failed already does not fail again.
            if device.advance_qp(qp, &error).is_ok() && !self.failed.contains(&qp) {
                self.failed.push(qp);
            }
        }
        Ok(())
    }
}

fn remote(op: SendOp) -> Option<RemoteAddr> {
    match op {
        SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) | SendOp::Read(remote) => {
            Some(remote)
        }
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(remote),
        _ => None,
    }
}

fn with_wrong_key(op: SendOp) -> SendOp {
    let wrong = |remote: RemoteAddr| RemoteAddr { rkey: remote.rkey ^ WRONG, ..remote };
    match op {
        SendOp::Write(remote) => SendOp::Write(wrong(remote)),
        SendOp::WriteWithImm(remote, imm) => SendOp::WriteWithImm(wrong(remote), imm),
        SendOp::Read(remote) => SendOp::Read(wrong(remote)),
        SendOp::CompareSwap { remote, compare, swap } => {
            SendOp::CompareSwap { remote: wrong(remote), compare, swap }
        }
        SendOp::FetchAdd { remote, add } => SendOp::FetchAdd { remote: wrong(remote), add },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_is_another_one() {
        let remote = RemoteAddr { addr: 7, rkey: 0xffff_ffff };
        for op in [
            SendOp::Write(remote),
            SendOp::WriteWithImm(remote, 1),
            SendOp::Read(remote),
            SendOp::CompareSwap { remote, compare: 1, swap: 2 },
            SendOp::FetchAdd { remote, add: 3 },
        ] {
            let wrong = self::remote(with_wrong_key(op)).unwrap();
            assert!(wrong.rkey != remote.rkey && wrong.addr == 7, "{op:?}");
        }
        assert_eq!(with_wrong_key(SendOp::Send), SendOp::Send);
    }

    #[test]
    fn the_same_posts_suffer_for_the_same_seed() {
        let drawn = |seed| {
            let shares = Shares { wrong_keys: 100_000, failures: 0, seed };
            let mut posts = Posts::new(shares).unwrap();
            (0..10_000).map(|_| posts.draws(shares.wrong_keys)).collect::<Vec<_>>()
        };
        assert!(drawn(7) == drawn(7) && drawn(7) != drawn(9));
        let share = drawn(7).iter().filter(|drawn| **drawn).count();
        assert!((800..1_200).contains(&share), "{share} of 10,000 at a tenth");
        assert!(Posts::new(Shares::default()).is_none());
    }
}
