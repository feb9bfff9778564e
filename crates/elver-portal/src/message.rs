use elver_verbs::Gid;
use thiserror::Error;

use crate::first::{FIRST_BYTES, First};
use crate::layout::{Layout, LayoutError};
use crate::version::{VERSION, VERSION_MINOR};

/// Most bytes of a message on the socket.
pub const MESSAGE_BYTES_MAX: usize = 512;

const MAGIC: u32 = u32::from_le_bytes(*b"elvr");

/// A message on a session's socket. All but [`Message::Wake`] are for the beginning of a session
/// and for what shared memory cannot carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client's first: it wants a session.
    Hello {
        /// The rings that it would like.
        layout: Layout,
        /// What it asks for at once. Since minor version 3.
        first: Option<First>,
    },
    /// The node's answer, with the file of the shared memory.
    Welcome(Welcome),
    /// The node's other answer; it closes the socket.
    Rejected {
        /// Why, and what to do.
        text: String,
    },
    /// The other end put something into a ring and found the flag of sleep set.
    Wake,
    /// A region's memory, as a file, from the node. The answer to the request comes through the
    /// completion ring.
    Memory {
        /// The request of the [`crate::Command::AllocMr`], [`crate::Command::Prepare`]
        /// or [`crate::Command::Reach`].
        request: u32,
    },
    /// A client's first, instead of a hello: it is a child of the process that prepared a set, and
    /// takes a session of it over. The answer is [`Message::Inherited`] or [`Message::Rejected`]. Since
    /// minor version 2.
    Inherit {
        /// The set.
        set: u32,
        /// Which session; any that is free if none.
        heir: Option<u32>,
    },
    /// The node's answer to that: the session is the child's ([`crate::Heirs`]).
    Inherited {
        /// Which session.
        heir: u32,
    },
}

/// What a client must know of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The rings that it got.
    pub layout: Layout,
    /// The node's GID.
    pub gid: Gid,
    /// What the client may do.
    pub limits: Limits,
    /// The node has taken up what the greeting asked for ([`First`]). Since minor version 3.
    pub first: bool,
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most SGEs in a WR.
    pub max_sge: u32,
    /// Most inline bytes in a WR.
    pub max_inline: u32,
    /// Most WRs outstanding on a VQP, in each direction.
    pub max_vqp_wr: u32,
    /// Most VQPs.
    pub vqps: u32,
    /// Most memory regions.
    pub mrs: u32,
    /// Most completions that wait for the client.
    pub completions: u32,
    /// Bytes of the longest message or transfer.
    pub message_bytes: u64,
    /// Bytes of all memory regions that the node allocates for the client.
    pub alloc_bytes: u64,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Too short, too long, or of an unknown kind.
    #[error("a message of {len} bytes that is none of a session's")]
    Unknown {
        /// Bytes of the message.
        len: usize,
    },
    /// It came with files that nobody asked for.
    #[error("a message with files where there must be none")]
    File,
    /// The other end speaks another major version.
    #[error(
        "the other end speaks version {theirs} of the portal, this one {VERSION}; update the older one \
         and restart it: a program that uses elver, or elverd"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// The layout cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REJECTED: u8 = 3;
const WAKE: u8 = 4;
/// [`Message::Wake`], encoded: it is sent while data go, and allocates nothing.
pub(crate) const WAKE_BYTES: &[u8] = &[WAKE];
const MEMORY: u8 = 5;
const INHERIT: u8 = 6;
const INHERITED: u8 = 7;
/// What stands for any session of a set.
const ANY: u32 = u32::MAX;

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Message::Hello { layout, first } => {
                let mut bytes = head(HELLO);
                put_layout(&mut bytes, layout);
                bytes.push(u8::from(first.is_some()));
                bytes.extend(first.iter().flat_map(First::encode));
                bytes
            }
            Message::Welcome(welcome) => {
                let mut bytes = head(WELCOME);
                put_layout(&mut bytes, &welcome.layout);
                bytes.extend(welcome.gid.0);
                let limits = &welcome.limits;
                for value in [
                    limits.max_sge,
                    limits.max_inline,
                    limits.max_vqp_wr,
                    limits.vqps,
                    limits.mrs,
                    limits.completions,
                ] {
                    bytes.extend(value.to_le_bytes());
                }
                bytes.extend(limits.message_bytes.to_le_bytes());
                bytes.extend(limits.alloc_bytes.to_le_bytes());
                bytes.push(u8::from(welcome.first));
                bytes
            }
            Message::Rejected { text } => {
                let mut bytes = head(REJECTED);
                let room = MESSAGE_BYTES_MAX - bytes.len();
                bytes.extend(&text.as_bytes()[..text.floor_char_boundary(room)]);
                bytes
            }
            Message::Wake => WAKE_BYTES.to_vec(),
            Message::Memory { request } => {
                let mut bytes = vec![MEMORY];
                bytes.extend(request.to_le_bytes());
                bytes
            }
            Message::Inherited { heir } => {
                let mut bytes = vec![INHERITED];
                bytes.extend(heir.to_le_bytes());
                bytes
            }
            Message::Inherit { set, heir } => {
                let mut bytes = head(INHERIT);
                bytes.extend(set.to_le_bytes());
                bytes.extend(heir.unwrap_or(ANY).to_le_bytes());
                bytes
            }
        }
    }

    /// The message that `bytes` encode, checked.
    ///
    /// # Errors
    ///
    /// [`MessageError::Unknown`] for what is no message; [`MessageError::Version`] of another major version of
    /// the portal; [`MessageError::Layout`] for rings that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        let unknown = MessageError::Unknown { len: bytes.len() };
        let (&kind, rest) = bytes.split_first().ok_or(unknown)?;
        let mut fields = Fields { rest, unknown };
        let message = match kind {
            HELLO => {
                fields.head()?;
                Message::Hello { layout: fields.layout()?, first: fields.first()? }
            }
            WELCOME => {
                fields.head()?;
                Message::Welcome(Welcome {
                    layout: fields.layout()?.check()?,
                    gid: Gid(fields.take()?),
                    limits: Limits {
                        max_sge: fields.number()?,
                        max_inline: fields.number()?,
                        max_vqp_wr: fields.number()?,
                        vqps: fields.number()?,
                        mrs: fields.number()?,
                        completions: fields.number()?,
                        message_bytes: u64::from_le_bytes(fields.take()?),
                        alloc_bytes: u64::from_le_bytes(fields.take()?),
                    },
                    first: fields.flag()?,
                })
            }
            REJECTED => {
                fields.head()?;
                let text = String::from_utf8_lossy(std::mem::take(&mut fields.rest)).into_owned();
                Message::Rejected { text }
            }
            WAKE => Message::Wake,
            MEMORY => Message::Memory { request: fields.number()? },
            INHERIT => {
                fields.head()?;
                let (set, heir) = (fields.number()?, fields.number()?);
                Message::Inherit { set, heir: (heir != ANY).then_some(heir) }
            }
            INHERITED => Message::Inherited { heir: fields.number()? },
            _ => return Err(unknown),
        };
        // What follows, a later version has added.
        Ok(message)
    }
}

fn head(kind: u8) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(VERSION_MINOR.to_le_bytes());
    bytes
}

fn put_layout(bytes: &mut Vec<u8>, layout: &Layout) {
    for slots in [layout.command_slots, layout.receive_slots, layout.completion_slots] {
        bytes.extend(slots.to_le_bytes());
    }
}

struct Fields<'a> {
    rest: &'a [u8],
    unknown: MessageError,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(self.unknown)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn number(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// What every version has, and has first.
    fn head(&mut self) -> Result<(), MessageError> {
        if self.number()? != MAGIC {
            return Err(self.unknown);
        }
        match u16::from_le_bytes(self.take()?) {
            VERSION => {}
            theirs => return Err(MessageError::Version { theirs }),
        }
        let _minor: [u8; 2] = self.take()?;
        Ok(())
    }

    /// Whether something is there; what an older version leaves out is not.
    fn flag(&mut self) -> Result<bool, MessageError> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(self.unknown),
        }
    }

    fn first(&mut self) -> Result<Option<First>, MessageError> {
        if !self.flag()? {
            return Ok(None);
        }
        let bytes: [u8; FIRST_BYTES] = self.take()?;
        First::decode(bytes).map(Some).map_err(|_| self.unknown)
    }

    fn layout(&mut self) -> Result<Layout, MessageError> {
        Ok(Layout {
            command_slots: self.number()?,
            receive_slots: self.number()?,
            completion_slots: self.number()?,
        })
    }
}
