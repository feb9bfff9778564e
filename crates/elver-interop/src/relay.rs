//! The link between the device and the guest, with faults: loses, doubles and reorders RoCE
//! packets, and nothing else, on their way in one direction.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elver_soft::UDP_PORT;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::axes::{Fault, Way};

/// One packet in so many is lost: 1 %.
const LOSS_ONE_IN: u64 = 100;
/// One packet in so many is doubled or held back.
const OTHER_ONE_IN: u64 = 50;
/// Packets that overtake one that is held back.
const OVERTAKERS: u32 = 2;
/// A packet that nothing overtakes is let go after this long.
const HELD_MAX: Duration = Duration::from_millis(2);
/// Frames moved in one go in each direction.
const BURST: usize = 64;
/// Longest frame.
const FRAME: usize = 9_100;
/// Socket buffers of the device's end.
const BUFFER_BYTES: usize = 4 << 20;

pub(crate) struct Relay {
    guest: OwnedFd,
    device: OwnedFd,
    fault: Fault,
    /// RoCE packets in the fault's direction until one is struck for certain.
    until_strike: Option<u32>,
    strikes: u64,
    random: u64,
    ways: [Direction; 2],
    buffer: Vec<u8>,
}

#[derive(Default)]
struct Direction {
    /// A packet that waits to be overtaken.
    held: Option<Held>,
    /// Frames that wait for room in the socket.
    waiting: VecDeque<Vec<u8>>,
}

struct Held {
    frame: Vec<u8>,
    overtakers: u32,
    since: Instant,
}

impl Relay {
    /// A relay to the guest, and the socket that the device is to open.
    pub(crate) fn new(guest: OwnedFd, seed: u64) -> Result<(Relay, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (device, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)
            .context("cannot make a socket pair")?;
        for end in [&device, &theirs] {
            // The system's limit bounds it; less room only means more waiting.
            let _ = sockopt::set_socket_send_buffer_size(end, BUFFER_BYTES);
        }
        let relay = Relay {
            guest,
            device,
            fault: Fault::None,
            until_strike: None,
            strikes: 0,
            random: seed | 1,
            ways: Default::default(),
            buffer: vec![0; FRAME],
        };
        Ok((relay, theirs))
    }

    /// What happens to packets from now on. What is held back goes on its way.
    pub(crate) fn set_fault(&mut self, fault: Fault) {
        self.fault = fault;
        self.until_strike = None;
        for way in &mut self.ways {
            way.waiting.extend(way.held.take().map(|held| held.frame));
        }
    }

    /// Makes sure of a strike: one of the next `among` packets in the fault's direction.
    pub(crate) fn make_strike(&mut self, among: u32) {
        let position = self.next_random() % u64::from(among.max(1));
        self.until_strike = Some(position as u32);
    }

    /// Packets struck so far.
    pub(crate) fn strikes(&self) -> u64 {
        self.strikes
    }

    /// Moves what there is to move; true if there was anything.
    pub(crate) fn pump(&mut self) -> Result<bool> {
        let inward = self.move_frames(Way::In)?;
        Ok(self.move_frames(Way::Out)? || inward)
    }

    fn move_frames(&mut self, way: Way) -> Result<bool> {
        let mut moved = false;
        for _ in 0..BURST {
            if !self.flush(way)? {
                break;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let (from, _) = self.ends(way);
            let received = rustix::net::recv(from, &mut buffer[..], RecvFlags::DONTWAIT);
            let len = match received {
                Ok((_, len)) => len.min(FRAME),
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(error) => return Err(error).context("the link to the guest"),
            };
            if len > 0 {
                moved = true;
                self.pass(way, &buffer[..len]);
            }
            self.buffer = buffer;
            if len == 0 {
                break;
            }
        }
        let held = &mut self.ways[index(way)];
        if held.held.as_ref().is_some_and(|held| held.since.elapsed() > HELD_MAX) {
            held.waiting.extend(held.held.take().map(|held| held.frame));
        }
        self.flush(way)?;
        Ok(moved)
    }

    /// Decides what becomes of a frame.
    fn pass(&mut self, way: Way, frame: &[u8]) {
        let one_in = match self.fault {
            Fault::Loss(at) if at == way => Some(LOSS_ONE_IN),
            Fault::Reorder(at) | Fault::Duplicate(at) if at == way => Some(OTHER_ONE_IN),
            _ => None,
        };
        let struck = one_in.is_some_and(|one_in| is_roce(frame) && self.strikes_now(one_in));
        self.strikes += u64::from(struck);
        let direction = &mut self.ways[index(way)];
        match self.fault {
            Fault::Loss(_) if struck => return,
            Fault::Reorder(_) if struck && direction.held.is_none() => {
                let since = Instant::now();
                let (frame, overtakers) = (frame.to_vec(), OVERTAKERS);
                direction.held = Some(Held { frame, overtakers, since });
                return;
            }
            Fault::Duplicate(_) if struck => direction.waiting.push_back(frame.to_vec()),
            _ => {}
        }
        direction.waiting.push_back(frame.to_vec());
        if let Some(held) = &mut direction.held {
            held.overtakers -= 1;
            if held.overtakers == 0 {
                direction.waiting.extend(direction.held.take().map(|held| held.frame));
            }
        }
    }

    /// Sends what waits; false if some of it must wait on.
    fn flush(&mut self, way: Way) -> Result<bool> {
        while let Some(frame) = self.ways[index(way)].waiting.pop_front() {
            let (_, to) = self.ends(way);
            match rustix::net::send(to, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                    self.ways[index(way)].waiting.push_front(frame);
                    return Ok(false);
                }
                Err(error) => return Err(error).context("the link to the guest"),
            }
        }
        Ok(true)
    }

    /// The sockets that frames of one direction come from and go to.
    fn ends(&self, way: Way) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        match way {
            Way::In => (self.guest.as_fd(), self.device.as_fd()),
            Way::Out => (self.device.as_fd(), self.guest.as_fd()),
        }
    }

    /// Whether a packet is struck: its turn has come, or chance has it, once in so many times.
    fn strikes_now(&mut self, one_in: u64) -> bool {
        let chance = self.next_random().is_multiple_of(one_in);
        match self.until_strike {
            Some(0) => {
                self.until_strike = None;
                true
            }
            Some(left) => {
                self.until_strike = Some(left - 1);
                chance
            }
            None => chance,
        }
    }

    /// xorshift64.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
    }
}

fn index(way: Way) -> usize {
    match way {
        Way::In => 0,
        Way::Out => 1,
    }
}

/// Whether an Ethernet frame carries IPv4 with UDP to RoCE's port.
fn is_roce(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0])
        && frame.get(23) == Some(&17)
        && frame.get(36..38) == Some(&UDP_PORT.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roce(tag: u8) -> Vec<u8> {
        let mut frame = vec![0; 64];
        frame[12] = 8;
        frame[23] = 17;
        frame[36..38].copy_from_slice(&UDP_PORT.to_be_bytes());
        frame[63] = tag;
        frame
    }

    /// What arrives of 200 RoCE frames and as many others.
    fn through(fault: Fault) -> (Vec<u8>, usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (guest, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        let (mut relay, device) = Relay::new(guest, 42).unwrap();
        relay.set_fault(fault);
        let (mut arrived, mut others) = (Vec::new(), 0);
        let mut take = |relay: &mut Relay| {
            while relay.pump().unwrap() {}
            let mut buffer = [0; 128];
            while let Ok((_, len)) = rustix::net::recv(&device, &mut buffer, RecvFlags::DONTWAIT) {
                match buffer[12] {
                    8 => arrived.push(buffer[len - 1]),
                    _ => others += 1,
                }
            }
        };
        for tag in 0..200 {
            rustix::net::send(&far, &roce(tag), SendFlags::empty()).unwrap();
            rustix::net::send(&far, &[0; 60], SendFlags::empty()).unwrap();
            take(&mut relay);
        }
        relay.set_fault(Fault::None);
        take(&mut relay);
        (arrived, others)
    }

    #[test]
    fn faults_strike_roce_packets_one_way_only() {
        let all: Vec<u8> = (0..200).collect();
        assert_eq!(through(Fault::None), (all.clone(), 200));
        assert_eq!(through(Fault::Loss(Way::Out)), (all.clone(), 200));

        let (lost, others) = through(Fault::Loss(Way::In));
        assert!(lost.len() < 200 && lost.is_sorted() && others == 200, "{}", lost.len());

        let (mut doubled, _) = through(Fault::Duplicate(Way::In));
        assert!(doubled.len() > 200);
        doubled.dedup();
        assert_eq!(doubled, all);

        let (mut reordered, _) = through(Fault::Reorder(Way::In));
        assert!(!reordered.is_sorted());
        reordered.sort_unstable();
        assert_eq!(reordered, all);
    }
}
