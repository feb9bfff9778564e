//! An end of a pair: a VQP, both halves of the protocol, and the memory that they stand in.

use std::collections::VecDeque;

use elver_core::{ClientId, ConnectOptions, VqpId, VqpInit};
use elver_nodesim::SimCore;
use elver_ring::protocol::{Config, Frame, Receiver, Sender, Span};
use elver_sim::SimMemory;
use elver_verbs::{
    AccessFlags, Device, Gid, Memory, MrInfo, Payload, PostError, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Time, Wc,
};

use crate::cluster::{PORT, refused};
use crate::model::{Reading, Violation};

/// Bytes of the words that a peer writes, behind its slots: the tail, the head, and one that is nothing.
const CELLS_BYTES: u64 = 3 * LINE;
const LINE: u64 = 64;
/// Of so many WRs one at least is signalled.
const UNSIGNALLED_MAX: u64 = 32;
/// Send WRs that are outstanding at most.
const SENDS_MAX: u64 = 127;
/// One that has not posted for so long asks whether its peer is there.
const PROBE_NS: u64 = 5_000_000;

/// The token of a deregistration that nobody asks about.
pub(crate) const NOBODY: u64 = u64::MAX;

/// What became of WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    All,
    /// Not all: come back.
    Later,
    /// The process's completions have no room for theirs.
    Overflow,
}

/// A WRITE to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Slots(Span),
    Tail(u64),
    /// One that was written before, once more: a planted bug.
    OldTail(u64),
    Head(u64),
    /// Nothing that it looks at.
    Probe,
}

/// How an end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Up,
    /// And why.
    Over(String),
}

/// Where a peer writes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    slots: RemoteAddr,
    cells: RemoteAddr,
}

/// A message that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) reading: Reading,
    pub(crate) frame: Frame,
    /// Its slots were freed already: a planted bug.
    pub(crate) freed: bool,
}

pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) boot: u32,
    pub(crate) vqp: VqpId,
    pub(crate) phase: Phase,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) slot_bytes: u32,
    /// The message that is being read.
    pub(crate) reading: Option<Held>,
    /// Slots that this end fills, and those that its peer fills with the words behind them.
    outgoing: SimMemory,
    outgoing_mr: MrInfo,
    pub(crate) incoming: SimMemory,
    incoming_mr: MrInfo,
    /// WRs by their numbers: the last that was posted, that is done, and that was signalled.
    posted: u64,
    done: u64,
    signalled: u64,
    /// Those that wrote a tail and are not done, and how many are.
    tails: VecDeque<u64>,
    advances: u64,
    /// The tail that was written last.
    pub(crate) last_tail: Option<u64>,
    posted_at: Time,
    pub(crate) over_at: Option<Time>,
    pub(crate) vanished: bool,
    /// Its process has given the memory back that the peer writes to.
    pub(crate) given_back: bool,
    /// It is registered.
    is_open: bool,
    /// How often that was written to when it was the process's alone again.
    closed_at: Option<u64>,
}

impl End {
    /// Memory, a VQP, and both halves at the beginning of empty rings.
    pub(crate) fn new(
        (core, client): (&mut SimCore, ClientId),
        (node, boot): (usize, u32),
        (outgoing, incoming): (Config, Config),
    ) -> Result<End, Violation> {
        let sender = Sender::new(outgoing).map_err(|error| refused("a ring", error))?;
        let receiver = Receiver::new(incoming).map_err(|error| refused("a ring", error))?;
        let local = AccessFlags::LOCAL_WRITE;
        let (outgoing_memory, outgoing_mr) =
            region(core, client, sender.shape().bytes(), AccessFlags::empty())?;
        let bytes = receiver.shape().bytes() + CELLS_BYTES;
        let (incoming_memory, incoming_mr) =
            region(core, client, bytes, local | AccessFlags::REMOTE_WRITE)?;
        let vqp = core.vqp_create(client, VqpInit::default());
        let vqp = vqp.map_err(|error| refused("vqp_create", error))?;
        Ok(End {
            node,
            boot,
            vqp,
            phase: Phase::Connecting,
            sender,
            receiver,
            slot_bytes: outgoing.slot_bytes,
            reading: None,
            outgoing: outgoing_memory,
            outgoing_mr,
            incoming: incoming_memory,
            incoming_mr,
            posted: 0,
            done: 0,
            signalled: 0,
            tails: VecDeque::new(),
            advances: 0,
            last_tail: None,
            posted_at: Time::ZERO,
            over_at: None,
            vanished: false,
            given_back: false,
            is_open: true,
            closed_at: None,
        })
    }

    /// Its memory vanishes beneath its registrations: whoever it belonged to does nothing any more.
    pub(crate) fn vanish(&mut self) {
        self.memories().into_iter().for_each(|memory| memory.set_gone(true));
        self.vanished = true;
    }

    /// Its memories, to make them late.
    pub(crate) fn memories(&self) -> [&SimMemory; 2] {
        [&self.outgoing, &self.incoming]
    }

    /// What its peer must know of it.
    pub(crate) fn place(&self) -> Place {
        let MrInfo { addr, rkey, .. } = self.incoming_mr;
        let cells = addr + self.receiver.shape().bytes();
        Place { slots: RemoteAddr { addr, rkey }, cells: RemoteAddr { addr: cells, rkey } }
    }

    /// What a stranger would write to: its slots, and its words.
    pub(crate) fn writable(&self) -> [RemoteAddr; 2] {
        let Place { slots, cells } = self.place();
        [slots, cells]
    }

    /// Begins to connect; it is up already, or hears of it.
    pub(crate) fn connect(
        &mut self,
        (core, client): (&mut SimCore, ClientId),
        gid: Gid,
        options: ConnectOptions,
        now: Time,
    ) -> Result<(), Violation> {
        let token = u64::from(self.vqp.0);
        let connected = core.qconnect(client, self.vqp, gid, PORT, options, token, now);
        if connected.map_err(|error| refused("qconnect", error))?.is_some() {
            self.phase = Phase::Up;
        }
        Ok(())
    }

    /// Gives back what it has: nobody posts for it any more. `own` is its number.
    pub(crate) fn part(
        &mut self,
        (core, client): (&mut SimCore, ClientId),
        own: usize,
        now: Time,
    ) -> Result<(), Violation> {
        core.vqp_destroy(client, self.vqp, now).map_err(|error| refused("vqp_destroy", error))?;
        let gone = core.dereg_mr(client, self.outgoing_mr.lkey, NOBODY, now);
        gone.map_err(|error| refused("dereg_mr", error))?;
        if self.is_open {
            self.give_back((core, client), own, now)?;
        }
        Ok(())
    }

    /// Gives the memory back that the peer writes to: it hears when that is its alone again.
    pub(crate) fn give_back(
        &mut self,
        (core, client): (&mut SimCore, ClientId),
        own: usize,
        now: Time,
    ) -> Result<(), Violation> {
        self.is_open = false;
        let gone = core.dereg_mr(client, self.incoming_mr.lkey, own as u64, now);
        gone.map_err(|error| refused("dereg_mr", error))
    }

    /// What peers wrote to is its process's alone again: nobody writes to it from now on.
    pub(crate) fn close(&mut self) {
        self.closed_at = self.closed_at.or(Some(self.incoming.changes()));
    }

    /// Whether it was written to since.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.closed_at.is_some_and(|closed_at| self.incoming.changes() != closed_at)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Fills a message.
    pub(crate) fn fill(&self, frame: &Frame, bytes: &[u8]) {
        let put = |offset, bytes: &[u8]| {
            self.outgoing.write_waiting(offset, bytes).expect("a frame lies within its ring");
        };
        put(frame.header_offset(), &frame.header().to_le_bytes());
        let [first, second] = frame.spans();
        let (before, behind) = bytes.split_at(first.len as usize);
        put(first.offset, before);
        put(second.offset, behind);
    }

    /// The tail of what comes in, and the head of what goes out, as the peer wrote them.
    pub(crate) fn tail_word(&self) -> u64 {
        self.word(0)
    }

    pub(crate) fn head_word(&self) -> u64 {
        self.word(LINE)
    }

    fn word(&self, cell: u64) -> u64 {
        self.incoming_word(self.receiver.shape().bytes() + cell)
    }

    /// The header that stands at a place of the slots that come in.
    pub(crate) fn incoming_word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.incoming.read_waiting(offset, &mut word).expect("a word lies within its region");
        u64::from_le_bytes(word)
    }

    /// Posts WRITEs, all of them or, if there is no room, none.
    pub(crate) fn post(
        &mut self,
        (core, client): (&mut SimCore, ClientId),
        peer: Place,
        writes: &[Write],
        now: Time,
    ) -> Result<Posted, Violation> {
        if self.left() + writes.len() as u64 > SENDS_MAX {
            return Ok(Posted::Later);
        }
        for write in writes {
            let number = self.posted + 1;
            let (word, sge, remote);
            let (to, payload) = match *write {
                Write::Slots(Span { offset, len }) => {
                    let length = u32::try_from(len).expect("a ring of the plan is short");
                    let addr = self.outgoing_mr.addr + offset;
                    sge = [Sge { addr, length, lkey: self.outgoing_mr.lkey }];
                    remote = RemoteAddr { addr: peer.slots.addr + offset, ..peer.slots };
                    (remote, Payload::Sges(&sge[..]))
                }
                Write::Tail(value) | Write::OldTail(value) => {
                    word = value.to_le_bytes();
                    (peer.cells, Payload::Inline(&word[..]))
                }
                Write::Head(value) => {
                    word = value.to_le_bytes();
                    remote = RemoteAddr { addr: peer.cells.addr + LINE, ..peer.cells };
                    (remote, Payload::Inline(&word[..]))
                }
                Write::Probe => {
                    remote = RemoteAddr { addr: peer.cells.addr + 2 * LINE, ..peer.cells };
                    (remote, Payload::Inline(&[0; 8][..]))
                }
            };
            let tells = matches!(write, Write::Tail(_) | Write::Probe);
            let signals = tells || number - self.signalled >= UNSIGNALLED_MAX;
            let flags = if signals { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: number, op: SendOp::Write(to), flags, payload, dest: None };
            match core.post_send(client, self.vqp, &[wr], now) {
                Ok(()) => {}
                Err((_, PostError::State { .. })) => return Ok(Posted::Later),
                Err((_, PostError::QueueFull { .. })) => return Ok(Posted::Overflow),
                Err((_, error)) => return Err(refused("post_send", error)),
            }
            self.posted = number;
            self.posted_at = now;
            if signals {
                self.signalled = number;
            }
            if let Write::Tail(value) = *write {
                self.tails.push_back(number);
                self.last_tail = Some(value);
            }
        }
        Ok(Posted::All)
    }

    /// How many WRs it has posted.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// How many of them are under way, or have ended untold.
    pub(crate) fn left(&self) -> u64 {
        self.posted - self.done
    }

    /// Whether it has not posted for so long that it should ask whether its peer is there.
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        now.ns_since(self.posted_at) >= PROBE_NS
    }

    /// A WR has completed with success, and so have all before it.
    pub(crate) fn completed(&mut self, wc: &Wc) {
        self.done = self.done.max(wc.wr_id);
        while self.tails.front().is_some_and(|tail| *tail <= self.done) {
            self.tails.pop_front();
            self.advances += 1;
        }
        self.sender.advanced(self.advances);
    }
}

fn region(
    core: &mut SimCore,
    client: ClientId,
    bytes: u64,
    access: AccessFlags,
) -> Result<(SimMemory, MrInfo), Violation> {
    let memory = core.device().alloc_memory(bytes).map_err(|error| refused("memory", error))?;
    let mr = core.reg_mr(client, memory.clone(), None, access);
    Ok((memory, mr.map_err(|error| refused("reg_mr", error))?))
}
