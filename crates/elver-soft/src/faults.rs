//! Faults by design: what befalls packets that arrive, to see how it is borne.

use std::collections::VecDeque;
use std::time::Duration;

use elver_rnic::{RxMeta, Time};

/// Bytes of packets that are kept to be taken later, at most; what comes beyond is dropped by the driver.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// What befalls the packets that arrive at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A share of them is dropped.
    pub loss: Option<Loss>,
    /// They are taken so much later than they arrived.
    pub delay: Duration,
    /// So long after the device was opened none arrives any longer, as if all peers had died at once.
    pub peers_die_after: Option<Duration>,
}

/// Drops a share of the packets that arrive, the same ones for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Packets dropped of a million.
    pub per_million: u32,
    /// Which ones.
    pub seed: u64,
}

/// The faults of an open device.
#[derive(Debug)]
pub(crate) struct FaultState {
    loss: Option<LossState>,
    delay_ns: u64,
    peers_die_at: Option<Time>,
    /// Whether nothing arrives now.
    pub(crate) down: bool,
    /// Packets that are taken later, the next one first.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    due: Time,
    meta: RxMeta,
    packet: Vec<u8>,
}

impl FaultState {
    /// Those of a device that is opened now; none if nothing is asked for.
    pub(crate) fn new(faults: Faults, now: Time) -> Option<FaultState> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let dies = faults.peers_die_after.map(|after| now.saturating_add_ns(ns(after)));
        (faults != Faults::default()).then(|| FaultState {
            loss: faults.loss.map(LossState::new),
            delay_ns: ns(faults.delay),
            peers_die_at: dies,
            ..FaultState::none()
        })
    }

    /// None so far.
    pub(crate) fn none() -> FaultState {
        FaultState {
            loss: None,
            delay_ns: 0,
            peers_die_at: None,
            down: false,
            kept: VecDeque::new(),
            kept_bytes: 0,
        }
    }

    /// Whether the next packet is lost.
    pub(crate) fn loses(&mut self, now: Time) -> bool {
        let dead = self.peers_die_at.is_some_and(|at| now >= at);
        self.loss.as_mut().is_some_and(LossState::drops) || dead || self.down
    }

    /// Whether packets are taken later than they came.
    pub(crate) fn delays(&self) -> bool {
        self.delay_ns > 0
    }

    /// Keeps a packet for later; false if there is no room for it.
    pub(crate) fn keep(&mut self, now: Time, meta: &RxMeta, packet: &[u8]) -> bool {
        if self.kept_bytes + packet.len() > KEPT_BYTES_MAX {
            return false;
        }
        self.kept_bytes += packet.len();
        let due = now.saturating_add_ns(self.delay_ns);
        self.kept.push_back(Kept { due, meta: *meta, packet: packet.to_vec() });
        true
    }

    /// When the next packet that was kept is to be taken.
    pub(crate) fn due(&self) -> Option<Time> {
        self.kept.front().map(|kept| kept.due)
    }

    /// A packet that is to be taken by now.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<(RxMeta, Vec<u8>)> {
        let kept = self.kept.pop_front_if(|kept| kept.due <= now)?;
        self.kept_bytes -= kept.packet.len();
        Some((kept.meta, kept.packet))
    }
}

#[derive(Debug)]
struct LossState {
    per_million: u64,
    state: u64,
}

impl LossState {
    fn new(loss: Loss) -> LossState {
        LossState { per_million: u64::from(loss.per_million), state: loss.seed | 1 }
    }

    /// Whether the next packet is dropped. The sequence is xorshift64 (Marsaglia, 2003).
    fn drops(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % 1_000_000 < self.per_million
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: RxMeta = RxMeta {
        flow: elver_wire::Flow {
            src: std::net::SocketAddr::V4(std::net::SocketAddrV4::new(
                std::net::Ipv4Addr::LOCALHOST,
                1,
            )),
            dst: std::net::SocketAddr::V4(std::net::SocketAddrV4::new(
                std::net::Ipv4Addr::LOCALHOST,
                2,
            )),
        },
        traffic_class: 0,
        hop_limit: 64,
        ip_id: elver_wire::IpId::Exact(0),
    };

    #[test]
    fn nothing_befalls_packets_by_default() {
        assert!(FaultState::new(Faults::default(), Time(5)).is_none());
    }

    #[test]
    fn packets_come_later_in_the_same_order_up_to_a_bound() {
        let delay = Duration::from_micros(50);
        let mut faults = FaultState::new(Faults { delay, ..Faults::default() }, Time(0)).unwrap();
        assert!(faults.delays() && !faults.loses(Time(1)));
        assert!(faults.keep(Time(1_000), &META, b"first"));
        assert!(faults.keep(Time(2_000), &META, b"second"));
        assert!(!faults.keep(Time(2_000), &META, &vec![0; KEPT_BYTES_MAX - 10]));
        assert_eq!(faults.due(), Some(Time(51_000)));
        assert_eq!(faults.take_due(Time(50_999)), None);
        let mut taken = || faults.take_due(Time(52_000)).map(|(_, packet)| packet);
        assert_eq!(taken().as_deref(), Some(&b"first"[..]));
        assert_eq!(taken().as_deref(), Some(&b"second"[..]));
        assert_eq!(taken(), None);
        assert_eq!((faults.due(), faults.kept_bytes), (None, 0));
    }

    #[test]
    fn peers_die_when_it_is_time() {
        let peers_die_after = Some(Duration::from_micros(3));
        let faults = Faults { peers_die_after, ..Faults::default() };
        let mut faults = FaultState::new(faults, Time(1_000)).unwrap();
        assert!(!faults.loses(Time(3_999)) && faults.loses(Time(4_000)));
    }

    #[test]
    fn the_same_packets_are_lost_for_the_same_seed() {
        let lost = |seed| {
            let loss = Some(Loss { per_million: 100_000, seed });
            let faults = Faults { loss, ..Faults::default() };
            let mut faults = FaultState::new(faults, Time(0)).unwrap();
            (0..10_000).map(|_| faults.loses(Time(0))).collect::<Vec<_>>()
        };
        assert!(lost(7) == lost(7) && lost(7) != lost(9));
        let share = lost(7).iter().filter(|lost| **lost).count();
        assert!((800..1_200).contains(&share), "{share} of 10,000 at a tenth");
    }
}
