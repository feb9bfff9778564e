//! Frames that wait: for a neighbour's MAC address, or for room in the socket. Both queues are
//! bounded in bytes.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::frames::ethernet::{self, Mac};

/// What a waiting frame costs beside its bytes.
const FRAME_COST: usize = 64;

/// Frames that wait for the MAC address of their next hop.
pub(crate) struct Held {
    frames: VecDeque<(IpAddr, Vec<u8>)>,
    bytes: usize,
    bytes_max: usize,
}

impl Held {
    pub(crate) fn new(bytes_max: usize) -> Held {
        Held { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Keeps a frame; false if there is no room for it. One neighbour gets a quarter of the room.
    pub(crate) fn push(&mut self, next_hop: IpAddr, frame: &[u8]) -> bool {
        let cost = frame.len() + FRAME_COST;
        let theirs: usize = self
            .frames
            .iter()
            .filter(|(ip, _)| *ip == next_hop)
            .map(|(_, frame)| cost_of(frame))
            .sum();
        if self.bytes + cost > self.bytes_max || theirs + cost > self.bytes_max / 4 {
            return false;
        }
        self.bytes += cost;
        self.frames.push_back((next_hop, frame.to_vec()));
        true
    }

    /// Moves what waits for `next_hop` to the outbox.
    pub(crate) fn release(&mut self, next_hop: IpAddr, mac: Mac, outbox: &mut Outbox) {
        self.take(next_hop, |mut frame| {
            ethernet::readdress(&mut frame, mac);
            outbox.put_back(frame);
        });
    }

    /// Gives up what waits for `next_hop`; returns how many frames that were.
    pub(crate) fn give_up(&mut self, next_hop: IpAddr) -> u64 {
        let mut count = 0;
        self.take(next_hop, |_| count += 1);
        count
    }

    fn take(&mut self, next_hop: IpAddr, mut each: impl FnMut(Vec<u8>)) {
        for (ip, frame) in std::mem::take(&mut self.frames) {
            if ip == next_hop {
                self.bytes -= cost_of(&frame);
                each(frame);
            } else {
                self.frames.push_back((ip, frame));
            }
        }
    }
}

/// Frames that are ready to leave.
pub(crate) struct Outbox {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
}

impl Outbox {
    pub(crate) fn new(bytes_max: usize) -> Outbox {
        Outbox { frames: VecDeque::new(), bytes: 0, bytes_max }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame; false if there is no room for it.
    pub(crate) fn push(&mut self, frame: Vec<u8>) -> bool {
        let fits = self.bytes + cost_of(&frame) <= self.bytes_max;
        if fits {
            self.put_back(frame);
        }
        fits
    }

    /// Adds a frame that another bound has let through.
    pub(crate) fn put_back(&mut self, frame: Vec<u8>) {
        self.bytes += cost_of(&frame);
        self.frames.push_back(frame);
    }

    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.frames.front().map(Vec::as_slice)
    }

    pub(crate) fn pop(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= cost_of(&frame);
        }
    }
}

fn cost_of(frame: &[u8]) -> usize {
    frame.len() + FRAME_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever comes, the bounds hold, and what is released is what was kept, in order.
        #[test]
        fn bounds_hold_and_order_stays(steps in proptest::collection::vec((0u8..4, 14usize..900, any::<bool>()), 0..200)) {
            let (mut held, mut outbox) = (Held::new(16_384), Outbox::new(16_384));
            let mut model: Vec<(u8, usize)> = Vec::new();
            for (host, len, release) in steps {
                let ip = IpAddr::from([10, 0, 0, host]);
                if release {
                    held.release(ip, Mac([host; 6]), &mut outbox);
                    for (_, len) in model.iter().filter(|(of, _)| *of == host) {
                        let frame = outbox.front().unwrap();
                        prop_assert_eq!((frame.len(), &frame[..6]), (*len, &[host; 6][..]));
                        outbox.pop();
                    }
                    model.retain(|(of, _)| *of != host);
                } else if held.push(ip, &vec![0; len]) {
                    model.push((host, len));
                }
                let cost = |of: Option<u8>| -> usize {
                    model.iter().filter(|(host, _)| of.is_none_or(|of| of == *host)).map(|(_, len)| len + FRAME_COST).sum()
                };
                prop_assert_eq!(held.bytes, cost(None));
                prop_assert!(held.bytes <= 16_384 && cost(Some(host)) <= 4_096);
            }
        }
    }

    #[test]
    fn a_full_outbox_refuses() {
        let mut outbox = Outbox::new(200);
        assert!(outbox.push(vec![0; 60]));
        assert!(!outbox.push(vec![0; 60]));
        outbox.pop();
        assert!(outbox.is_empty() && outbox.push(vec![0; 60]));
    }
}
