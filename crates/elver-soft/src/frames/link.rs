//! A frame link at work: the station, and the socket that carries its frames.

use std::os::fd::BorrowedFd;

use elver_memory::SoftMemory;
use elver_rnic::{MAX_PACKET, Rnic, Time};
use rustix::event::PollFlags;

use crate::SoftError;
use crate::capture::{Capture, Direction};
use crate::frames::FrameSocket;
use crate::frames::config::FrameLink;
use crate::frames::host::{FRAME_BUFFER, Host};
use crate::frames::ip::HEADROOM;
use crate::frames::socket::{ReceivedFrame, SentFrame};
use crate::inlet::Inlet;
use crate::intake::Look;

/// Frames that one look takes at most.
const RECEIVE_FRAMES: usize = 32;
/// Frames that leave at most before what arrived has its turn.
const SEND_FRAMES: usize = 64;
/// Looks in a row that found something before further frames are looked for at once.
const HITS_OF_A_STREAM: u32 = 3;

pub(crate) struct FramePort {
    socket: FrameSocket,
    host: Host,
    closed: bool,
    outgoing: Vec<u8>,
    /// One slot a frame, a byte longer than a frame can be: what fills it is too long.
    incoming: Vec<u8>,
    slot: usize,
    lengths: Vec<usize>,
    /// What the last receive found.
    pub(crate) look: Look,
    /// Looks in a row that found something.
    hits: u32,
}

impl FramePort {
    /// Opens a link that was validated.
    pub(crate) fn open(
        link: FrameLink,
        udp_port: u16,
        rcvbuf: usize,
        sndbuf: usize,
    ) -> Result<FramePort, SoftError> {
        link.socket.make_room(rcvbuf, sndbuf)?;
        let mut host = Host::new(&link, udp_port);
        host.announce();
        let slot = host.frame_max() + 1;
        Ok(FramePort {
            socket: link.socket,
            host,
            closed: false,
            outgoing: vec![0; FRAME_BUFFER],
            incoming: vec![0; slot * RECEIVE_FRAMES],
            slot,
            lengths: Vec::with_capacity(RECEIVE_FRAMES),
            look: Look::default(),
            hits: 0,
        })
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// What to wait for; nothing once the other end is gone.
    pub(crate) fn poll_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let room = if self.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
        (!self.closed).then(|| (self.socket.as_fd(), PollFlags::IN | room))
    }

    /// Whether frames wait for room in the socket.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.host.outbox.is_empty()
    }

    /// Receives what is there, at most a few frames; returns how many.
    pub(crate) fn receive(&mut self) -> usize {
        self.lengths.clear();
        self.look = Look::default();
        let most = if self.hits < HITS_OF_A_STREAM { 1 } else { RECEIVE_FRAMES };
        for slot in self.incoming.chunks_exact_mut(self.slot).take(most) {
            if self.closed {
                self.look.emptied = true;
                break;
            }
            match self.socket.receive(slot) {
                ReceivedFrame::Frame(len) => self.lengths.push(len.min(self.slot)),
                ReceivedFrame::Nothing => {
                    self.look.emptied = true;
                    break;
                }
                ReceivedFrame::Unknown => break,
                ReceivedFrame::Closed => {
                    self.closed = true;
                    self.host.counters.frame_link_closed += 1;
                }
            }
        }
        let streams = self.lengths.len() > 1 || (most == 1 && self.lengths.len() == 1);
        self.hits = if streams { self.hits.saturating_add(1) } else { 0 };
        self.lengths.len()
    }

    /// Gives what was received to the RNIC, or to whom else it concerns.
    pub(crate) fn take(&mut self, inlet: &mut Inlet<'_>) {
        for (slot, len) in self.incoming.chunks_exact(self.slot).zip(&self.lengths) {
            let frame = &slot[..*len];
            if let Some(capture) = inlet.capture {
                capture.frame(Direction::In, frame);
            }
            if let Some((meta, packet)) = self.host.handle_frame(inlet.now, frame)
                && !inlet.loses()
            {
                inlet.give(&meta, packet);
            }
        }
    }

    /// Sends what waits and what the RNIC has to send; true if anything went.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        rnic: &mut Rnic<SoftMemory>,
        capture: &mut Option<Box<Capture>>,
    ) -> bool {
        let mut busy = self.flush(capture);
        for _ in 0..SEND_FRAMES {
            if self.is_waiting() {
                return self.flush(capture) || busy;
            }
            let room = &mut self.outgoing[HEADROOM..HEADROOM + MAX_PACKET];
            let Some(packet) = rnic.poll_transmit(now, room) else {
                break;
            };
            busy = true;
            let Some(range) = self.host.enclose(now, &packet, &mut self.outgoing) else {
                continue;
            };
            if let Some(meta) = self.host.hears(&packet) {
                // No station hears what it sends.
                rnic.handle_multicast(now, &meta, &self.outgoing[HEADROOM..HEADROOM + packet.len]);
            }
            let frame = &self.outgoing[range];
            match self.socket.send(frame) {
                SentFrame::Sent => sent(frame, &mut self.host, capture),
                // The outbox is empty, so that this frame stays ahead of those to come.
                SentFrame::Full => self.host.outbox.put_back(frame.to_vec()),
                SentFrame::Refused => self.host.counters.frame_drop_refused += 1,
            }
        }
        busy
    }

    /// Sends what waits, as far as there is room; true if anything went.
    #[inline]
    fn flush(&mut self, capture: &mut Option<Box<Capture>>) -> bool {
        let mut busy = false;
        while let Some(frame) = self.host.outbox.front() {
            match self.socket.send(frame) {
                SentFrame::Sent => {
                    if let Some(capture) = capture {
                        capture.frame(Direction::Out, frame);
                    }
                    self.host.counters.frame_tx += 1;
                }
                SentFrame::Full => break,
                SentFrame::Refused => self.host.counters.frame_drop_refused += 1,
            }
            self.host.outbox.pop();
            busy = true;
        }
        busy
    }

    /// Does what is due by the clock; true if a frame waits for it.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.host.poll_timeout().is_none_or(|due| due > now) {
            return false;
        }
        self.host.handle_timeout(now);
        self.is_waiting()
    }
}

#[inline]
fn sent(frame: &[u8], host: &mut Host, capture: &mut Option<Box<Capture>>) {
    host.counters.frame_tx += 1;
    if let Some(capture) = capture {
        capture.frame(Direction::Out, frame);
    }
}
