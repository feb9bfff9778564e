#[cfg(not(loom))]
use std::{io, os::fd::AsFd, ptr::NonNull};

use elver_verbs::{Gid, PostError, RecvWr, SendWr};

use crate::command::{self, Command};
use crate::layout::{Layout, SLOT_WORDS};
use crate::memory::Words;
use crate::reply::{self, Answer, Completion, Refusal, Reply};
use crate::ring::{Consumer, Entry, Producer, Violation};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::version::{COMMANDS, NOTICES};
use crate::wqe::{self, RecvBatch, SendBatch};

/// The node's end of a session's shared memory.
pub struct NodeEnd {
    commands: Consumer,
    receives: Consumer,
    completions: Producer,
    sleep: Sleep,
    #[cfg(not(loom))]
    all: Words,
}

/// The client's end of a session's shared memory.
pub struct ClientEnd {
    commands: Producer,
    receives: Producer,
    completions: Consumer,
    sleep: Sleep,
    #[cfg(not(loom))]
    arena: Words,
}

/// Space to decode into, which an engine has once for all its sessions.
#[derive(Default)]
pub struct Scratch {
    entry: Entry,
    gids: Vec<Gid>,
    sends: SendBatch,
    receives: RecvBatch,
    text: Vec<u8>,
}

/// What stands next in a command ring.
pub enum Request<'a> {
    /// A command.
    Command {
        /// What its answer must name.
        request: u32,
        /// The command.
        command: Command<'a>,
    },
    /// A command of a later version: to be refused ([`crate::version`]).
    Unknown {
        /// What its answer must name.
        request: u32,
        /// Its kind.
        kind: u8,
    },
    /// Send WRs of one VQP.
    Sends {
        /// The VQP.
        vqp: u32,
        /// The WRs.
        wrs: &'a SendBatch,
    },
}

/// Receives of one VQP.
pub struct Receives<'a> {
    /// The VQP.
    pub vqp: u32,
    /// The WRs.
    pub wrs: &'a RecvBatch,
}

/// Why a WR could not be put into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The ring is full: the node has to catch up.
    #[error("the ring to the node is full")]
    Full,
    /// The WR cannot be expressed.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The other end broke the ring.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl NodeEnd {
    /// The node's end over a fresh file of [`Layout::bytes`], which it made with
    /// [`crate::memfd::create`]. The arena is no part of it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the file is shorter than the layout or may become so; what the system
    /// said if it cannot be mapped.
    #[cfg(not(loom))]
    pub fn map(file: impl AsFd, layout: Layout) -> io::Result<NodeEnd> {
        Ok(NodeEnd::over(&map(file, layout, layout.ring_bytes(), true)?, layout))
    }

    pub(crate) fn over(words: &Words, layout: Layout) -> NodeEnd {
        let rings = Rings::of(words, layout);
        NodeEnd {
            commands: Consumer::new(rings.commands.0, rings.commands.1),
            receives: Consumer::new(rings.receives.0, rings.receives.1),
            completions: Producer::new(rings.completions.0, rings.completions.1),
            sleep: Sleep { own: rings.node_sleeps, others: rings.client_sleeps },
            #[cfg(not(loom))]
            all: words.part(0, words.len()),
        }
    }

    /// Whether a page of the rings could not be had, so that the client shares them no more.
    #[cfg(not(loom))]
    pub fn is_lost(&self) -> bool {
        self.all.is_lost()
    }

    /// Gives the rings' memory back to the system, though the client may still map it. To be called
    /// when the session has ended: the rings are empty from then on.
    #[cfg(not(loom))]
    pub fn discard(&self) {
        self.all.discard();
    }

    /// Takes what stands next in the command ring.
    ///
    /// # Errors
    /// After a violation the session must be ended: what follows in the ring has no meaning.
    #[inline]
    pub fn next_request<'a>(
        &mut self,
        scratch: &'a mut Scratch,
    ) -> Result<Option<Request<'a>>, Violation> {
        let Scratch { entry, gids, sends, .. } = scratch;
        if !self.commands.pop(entry)? {
            return Ok(None);
        }
        if entry.kind == wqe::SEND {
            let vqp = sends.fill(&mut self.commands, entry)?;
            return Ok(Some(Request::Sends { vqp, wrs: sends }));
        }
        match command::decode(entry, gids) {
            Ok(command) => Ok(Some(Request::Command { request: entry.id, command })),
            Err(Violation::Kind { kind }) if COMMANDS.contains(&kind) => {
                Ok(Some(Request::Unknown { request: entry.id, kind }))
            }
            Err(violation) => Err(violation),
        }
    }

    /// Takes the receives that were posted next. A client posts receives before what brings
    /// messages to them, so look here first.
    ///
    /// # Errors
    /// As [`NodeEnd::next_request`].
    #[inline]
    pub fn next_receives<'a>(
        &mut self,
        scratch: &'a mut Scratch,
    ) -> Result<Option<Receives<'a>>, Violation> {
        let Scratch { entry, receives, .. } = scratch;
        let vqp = receives.fill(&mut self.receives, entry)?;
        Ok(vqp.map(|vqp| Receives { vqp, wrs: receives }))
    }

    /// Slots that are free for replies. A completion takes one, any reply at most
    /// [`crate::REPLY_SLOTS_MAX`]: what has no room waits at the node.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn room(&mut self) -> Result<u32, Violation> {
        self.completions.room()
    }

    /// Puts a completion into the ring; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    #[inline]
    pub fn complete(&mut self, completion: &Completion) -> Result<bool, Violation> {
        completion.push(&mut self.completions)
    }

    /// Answers a command; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn answer(&mut self, request: u32, answer: &Answer<'_>) -> Result<bool, Violation> {
        answer.push(&mut self.completions, request)
    }

    /// Tells that a VQP failed; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn vqp_failed(&mut self, vqp: u32, cause: &Refusal<'_>) -> Result<bool, Violation> {
        cause.push_failed(&mut self.completions, vqp)
    }

    /// To be called after replies were put in: whether the client sleeps and must get a
    /// [`crate::Message::Wake`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.sleep.must_wake()
    }

    /// The message that [`NodeEnd::must_wake`] asked for could not be sent: the next call asks for it again, if the client
    /// still sleeps.
    pub fn not_woken(&self) {
        self.sleep.not_woken();
    }

    /// Announces that the node will not look at the rings until it gets a message. False if there
    /// is something to take, and it must not sleep.
    pub fn sleep(&self) -> bool {
        self.sleep.announce(|| self.commands.is_empty() && self.receives.is_empty())
    }

    /// The node looks at the rings again.
    pub fn awake(&self) {
        self.sleep.revoke();
    }

    /// Whether the client has put nothing in.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.receives.is_empty()
    }
}

impl ClientEnd {
    /// The client's end over the file that came with the node's welcome.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the file is shorter than the layout or may become so; what the system
    /// said if it cannot be mapped.
    #[cfg(not(loom))]
    pub fn map(file: impl AsFd, layout: Layout) -> io::Result<ClientEnd> {
        // The first look at a page maps all around it, for a tenth of what it costs to map every
        // page now.
        Ok(ClientEnd::over(&map(file, layout, layout.bytes(), false)?, layout))
    }

    pub(crate) fn over(words: &Words, layout: Layout) -> ClientEnd {
        let rings = Rings::of(words, layout);
        ClientEnd {
            commands: Producer::new(rings.commands.0, rings.commands.1),
            receives: Producer::new(rings.receives.0, rings.receives.1),
            completions: Consumer::new(rings.completions.0, rings.completions.1),
            sleep: Sleep { own: rings.client_sleeps, others: rings.node_sleeps },
            #[cfg(not(loom))]
            arena: words.part(layout.arena_at() / 8, crate::layout::ARENA_BYTES as usize / 8),
        }
    }

    /// The first byte of the arena, which is mapped as long as this lives. The node, and peers that
    /// it lets, may write any of it at any time.
    #[cfg(not(loom))]
    pub fn arena(&self) -> NonNull<u8> {
        self.arena.start()
    }

    /// Leaves the rings and the arena to the process that this one is a child of: here zeros are in their place, and
    /// pointers to the arena stay valid.
    ///
    /// # Errors
    ///
    /// What the system said: it has no memory.
    #[cfg(not(loom))]
    pub fn leave(&self) -> io::Result<()> {
        self.arena.leave()
    }

    /// Asks something of the node; `request` comes back with the answer. False if there is no
    /// room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn command(&mut self, request: u32, command: &Command<'_>) -> Result<bool, Violation> {
        command.push(&mut self.commands, request)
    }

    /// Posts a send WR.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`]: the node has to catch up; [`PushError::Post`] if the WR has more SGEs or inline
    /// bytes than an entry holds, or does what no VQP does; [`PushError::Violation`] as in
    /// [`ClientEnd::command`].
    #[inline]
    pub fn send(&mut self, vqp: u32, wr: &SendWr<'_>) -> Result<(), PushError> {
        taken(wqe::push_send(&mut self.commands, vqp, wr)??)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`]; [`PushError::Post`] if it has more SGEs than an entry holds;
    /// [`PushError::Violation`] as in [`ClientEnd::command`].
    #[inline]
    pub fn receive(&mut self, vqp: u32, wr: &RecvWr<'_>) -> Result<(), PushError> {
        taken(wqe::push_receive(&mut self.receives, vqp, wr)??)
    }

    /// Takes what the node told next.
    ///
    /// # Errors
    ///
    /// A [`Violation`]: the node has written what is no entry, or none of these. The session is to end.
    #[inline]
    pub fn next_reply<'a>(
        &mut self,
        scratch: &'a mut Scratch,
    ) -> Result<Option<Reply<'a>>, Violation> {
        let Scratch { entry, text, .. } = scratch;
        loop {
            if !self.completions.pop(entry)? {
                return Ok(None);
            }
            if !NOTICES.contains(&entry.kind) {
                return reply::decode(entry, text).map(Some);
            }
        }
    }

    /// To be called after something was put in: whether the node sleeps and must get a
    /// [`crate::Message::Wake`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        self.sleep.must_wake()
    }

    /// The message that [`ClientEnd::must_wake`] asked for could not be sent: the next call asks for it again, if the node
    /// still sleeps.
    pub fn not_woken(&self) {
        self.sleep.not_woken();
    }

    /// Announces that the client will not look at the ring until it gets a message. False if there
    /// is something to take, and it must not sleep.
    pub fn sleep(&self) -> bool {
        self.sleep.announce(|| self.completions.is_empty())
    }

    /// The client looks at the ring again.
    pub fn awake(&self) {
        self.sleep.revoke();
    }

    /// Whether the node has told nothing new.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.completions.is_empty()
    }
}

/// The flags by which two ends agree who has to be woken.
///
/// Who wants to sleep sets its flag and looks once more; who put something in looks at the flag
/// after that. A fence on both sides orders each one's store before its load, so that at least one
/// of them sees the other (Dekker).
pub(crate) struct Sleep {
    pub(crate) own: Words,
    pub(crate) others: Words,
}

impl Sleep {
    pub(crate) fn announce(&self, is_idle: impl FnOnce() -> bool) -> bool {
        // An exchange, so that it is ordered behind every earlier exchange of the other end's.
        self.flag().swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let may_sleep = is_idle();
        if !may_sleep {
            self.revoke();
        }
        may_sleep
    }

    pub(crate) fn revoke(&self) {
        self.flag().store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let other = &self.others[0];
        // One waking is enough: the flag is taken down by whoever takes care of it.
        other.load(Ordering::Relaxed) != 0 && other.swap(0, Ordering::Relaxed) != 0
    }

    /// Puts the flag back that was taken down for a waking which was not made. One that looks again by now may be woken once
    /// for nothing.
    #[cold]
    pub(crate) fn not_woken(&self) {
        self.others[0].store(1, Ordering::Relaxed);
    }

    fn flag(&self) -> &AtomicU64 {
        &self.own[0]
    }
}

struct Rings {
    commands: (Words, Words),
    receives: (Words, Words),
    completions: (Words, Words),
    node_sleeps: Words,
    client_sleeps: Words,
}

impl Rings {
    fn of(words: &Words, layout: Layout) -> Rings {
        let ring = |at: usize, slots: u32, head: usize| {
            (words.part(at, slots as usize * SLOT_WORDS), words.part(head, 1))
        };
        Rings {
            commands: ring(layout.commands_at(), layout.command_slots, Layout::COMMAND_HEAD),
            receives: ring(layout.receives_at(), layout.receive_slots, Layout::RECEIVE_HEAD),
            completions: ring(
                layout.completions_at(),
                layout.completion_slots,
                Layout::COMPLETION_HEAD,
            ),
            node_sleeps: words.part(Layout::NODE_SLEEPS, 1),
            client_sleeps: words.part(Layout::CLIENT_SLEEPS, 1),
        }
    }
}

#[cfg(not(loom))]
fn map(file: impl AsFd, layout: Layout, bytes: usize, populate: bool) -> io::Result<Words> {
    layout.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Words::map(file, bytes, populate)
}

#[inline]
fn taken(taken: bool) -> Result<(), PushError> {
    if taken { Ok(()) } else { Err(PushError::Full) }
}
