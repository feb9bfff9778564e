use alloc::boxed::Box;

use elver_kv::Lookup;
use elver_verbs::{Class, Dest, RemoteAddr, Time};

use crate::ids::{LaneIx, PeerId};
use crate::messaging::gather::Gather;
use crate::messaging::notes::Note;
use crate::rc::suspect::Suspect;

/// Something that the core itself does on a lane: READs or messages, one signalled WR at a time.
#[derive(Debug)]
pub(crate) struct Op {
    /// The lane that it runs on; none while it waits for one.
    pub(crate) lane: Option<LaneIx>,
    /// Where it goes, on a DCI.
    pub(crate) dest: Option<Dest>,
    /// The peer that it goes to, which it pins.
    pub(crate) peer: PeerId,
    /// Whose traffic it goes with.
    pub(crate) class: Class,
    /// What it is for.
    pub(crate) kind: OpKind,
    /// What is posted for it.
    pub(crate) work: Work,
    /// Nobody waits for its outcome any longer; it ends when its WR does.
    pub(crate) abandoned: bool,
    /// Whether RC QPs fail for it.
    pub(crate) suspect: Suspect,
}

/// The WR of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// READ of so many bytes into a look-up's buffer.
    Read {
        /// What is read.
        remote: RemoteAddr,
        /// How many bytes.
        length: u32,
        /// The buffer.
        buffer: u32,
    },
    /// What the message that is being read says.
    Gather,
    /// A message of so many bytes in a send slot.
    Send {
        /// The slot.
        slot: u32,
        /// How many bytes.
        length: u32,
    },
}

/// What an operation is for.
#[derive(Debug)]
pub(crate) enum OpKind {
    /// Reads a node's record at a meta server.
    Node {
        /// The node.
        node: PeerId,
        /// The look-up.
        lookup: Lookup,
        /// When its last READ was posted.
        asked_at: Time,
    },
    /// Reads what nobody waits for at a meta server, to know how far that is.
    Probe {
        /// When it was posted.
        asked_at: Time,
    },
    /// Reads a region's entry in the ValidMR table of the peer.
    Mr {
        /// Its key.
        rkey: u32,
        /// Whose turn it has.
        account: u64,
        /// The look-up.
        lookup: Lookup,
        /// When its last READ was posted: the lease counts from there.
        asked_at: Time,
    },
    /// Reads a message into a receive.
    Gather(Box<Gather>),
    /// Tells a VQP of the peer's something.
    Message(Note),
}
