use elver_verbs::{AccessFlags, Class, ConnectOptions, Gid, Policy};

use crate::fields::{Reader, byte, flag, halves, join, known, port, put_gid};
use crate::layout::ENTRY_WORDS_MAX;
use crate::ring::{Entry, Producer, Violation};

/// Most GIDs of a [`Command::Warm`].
pub const WARM_GIDS_MAX: usize = (ENTRY_WORDS_MAX - 1) / 2;

/// What a client asks of its node. Each gets one [`crate::Answer`], in whatever order they are
/// done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Create a VQP: [`crate::Answer::Vqp`].
    CreateVqp(VqpOptions),
    /// Destroy a VQP: [`crate::Answer::Done`].
    DestroyVqp {
        /// The VQP.
        vqp: u32,
    },
    /// Let messages to a port come to the VQP: [`crate::Answer::Port`].
    Bind {
        /// The VQP.
        vqp: u32,
        /// The port; 0 for a free one.
        port: u16,
    },
    /// Connect a VQP: [`crate::Answer::Connected`].
    Connect {
        /// The VQP.
        vqp: u32,
        /// The peer.
        gid: Gid,
        /// The port there.
        port: u16,
        /// How.
        options: ConnectOptions,
    },
    /// Get the metadata of many peers: [`crate::Answer::Warmed`].
    Warm {
        /// The peers, at most [`WARM_GIDS_MAX`].
        gids: &'a [Gid],
    },
    /// Make memory that both ends map, and register it: [`crate::Answer::Mr`], and its file comes
    /// over the socket ([`crate::Message::Memory`]) before.
    AllocMr {
        /// Bytes.
        len: u64,
        /// Where the client will map it.
        addr: u64,
        /// What the region permits.
        access: AccessFlags,
        /// Take huge pages if there are enough.
        huge: bool,
    },
    /// As [`Command::AllocMr`], its pages at a NUMA node of the host as long as that one has some left. Where the system does
    /// not let the node say so the memory lies anywhere. Since minor version 7.
    AllocMrNear {
        /// Bytes.
        len: u64,
        /// Where the client will map it.
        addr: u64,
        /// What the region permits.
        access: AccessFlags,
        /// Take huge pages if there are enough.
        huge: bool,
        /// The NUMA node's number.
        near: u16,
    },
    /// Register a piece of the session's arena ([`crate::ARENA_BYTES`]): [`crate::Answer::Mr`]. Which
    /// pieces are in use is the client's affair.
    CarveMr {
        /// Bytes.
        len: u64,
        /// Where the piece begins in the arena.
        offset: u64,
        /// Where the client has it mapped.
        addr: u64,
        /// What the region permits.
        access: AccessFlags,
    },
    /// Register memory of the client's process: [`crate::Answer::Mr`].
    RegisterMr {
        /// Address of the first byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// What the region permits.
        access: AccessFlags,
    },
    /// Register memory of a [`Command::AllocMr`] once more: [`crate::Answer::Mr`]. The session that has it
    /// is this one or another of the same process's, and who has registered it last gives it back.
    /// Since minor version 1.
    ShareMr {
        /// The key of a region of it.
        lkey: u32,
        /// Where the client has it mapped, as that region was told.
        addr: u64,
        /// What the new region permits.
        access: AccessFlags,
    },
    /// Deregister a region: [`crate::Answer::Done`] once nobody can touch the memory.
    DeregisterMr {
        /// Its key.
        lkey: u32,
    },
    /// Ask how a VQP is: [`crate::Answer::Info`].
    QueryVqp {
        /// The VQP.
        vqp: u32,
    },
    /// The client will close its socket: [`crate::Answer::Done`] when all that it had is gone.
    Goodbye,
    /// Begin a set of sessions that this process's children will take over ([`crate::Heirs`]):
    /// [`crate::Answer::Prepared`], and the set's file comes over the socket before. Since minor
    /// version 6, and what follows since 2: before, a command of another kind asked for files in which each record stood
    /// before its session.
    Prepare {
        /// How many sessions.
        heirs: u32,
        /// VQPs that each will have: one for each [`Command::PrepareVqp`] that follows.
        vqps: u32,
        /// Bytes of the memory region that each has, at the beginning of its arena; 0 for none.
        mr_len: u64,
        /// What the region permits.
        access: AccessFlags,
    },
    /// Name a VQP that each session of the set will have, connected: [`crate::Answer::Done`].
    PrepareVqp {
        /// The set.
        set: u32,
        /// The peer.
        gid: Gid,
        /// The port there.
        port: u16,
        /// How it is connected.
        connect: ConnectOptions,
        /// What it is created with.
        options: VqpOptions,
    },
    /// Make the sessions: [`crate::Answer::Done`] when all are there.
    Seal {
        /// The set.
        set: u32,
        /// Where the client has the first session mapped.
        addr: u64,
        /// Whether a VQP that cannot be connected refuses the set; if not, its session is there
        /// without it.
        must_connect: bool,
    },
    /// End a set: sessions that no child has taken go: [`crate::Answer::Done`].
    Disown {
        /// The set.
        set: u32,
    },
    /// Let the process reach a region itself, over a VQP that is connected to this node: [`crate::Answer::Reached`].
    /// Over the socket come before it, the first time, the file of the session's gate ([`crate::ClientGate`]), and
    /// then the region's, unless the session has it already. Since minor version 4.
    Reach {
        /// The VQP.
        vqp: u32,
        /// The region's key for peers.
        rkey: u32,
    },
    /// Name a VQP that each session of the set will have, with no destination yet: [`crate::Answer::Done`]. Since minor
    /// version 5.
    PrepareUnassigned {
        /// The set.
        set: u32,
        /// What it is created with.
        options: VqpOptions,
    },
    /// Name the destination that such a VQP of one session has whenever that is made anew, until it cannot be connected
    /// to: [`crate::Answer::Done`]. Since minor version 5.
    Assign {
        /// The set.
        set: u32,
        /// Which of its sessions.
        heir: u32,
        /// Which of the session's VQPs: its place among all that were named.
        at: u32,
        /// The peer; all zero for none again.
        gid: Gid,
        /// The port there.
        port: u16,
        /// How it is connected.
        connect: ConnectOptions,
    },
}

/// What a VQP is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpOptions {
    /// Priority; without one, what the node's configuration gives the process's user. The high one
    /// is refused to a user who may not have it.
    pub class: Option<Class>,
    /// Most outstanding send WRs.
    pub max_send_wr: u32,
    /// Most outstanding receive WRs.
    pub max_recv_wr: u32,
    /// Whether every send WR is signalled.
    pub sq_sig_all: bool,
    /// Whether a SEND completes only when a receive has taken it, whatever its length, and fails if none
    /// does. Its receiver reads it, which costs a round trip more; such a VQP sends nothing inline.
    /// WRITE_WITH_IMM is not concerned.
    pub confirm_sends: bool,
}

impl Default for VqpOptions {
    fn default() -> VqpOptions {
        VqpOptions {
            class: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            sq_sig_all: false,
            confirm_sends: false,
        }
    }
}

/// Kinds of entries in the command ring; that of send WQEs stands in `wqe`.
const CREATE_VQP: u8 = 1;
const DESTROY_VQP: u8 = 2;
const BIND: u8 = 3;
const CONNECT: u8 = 4;
const WARM: u8 = 5;
const ALLOC_MR: u8 = 6;
const REGISTER_MR: u8 = 7;
const DEREGISTER_MR: u8 = 8;
const QUERY_VQP: u8 = 9;
const GOODBYE: u8 = 10;
const CARVE_MR: u8 = 11;
const SHARE_MR: u8 = 12;
const PREPARE_VQP: u8 = 14;
const SEAL: u8 = 15;
const DISOWN: u8 = 16;
const REACH: u8 = 17;
const PREPARE_UNASSIGNED: u8 = 18;
const ASSIGN: u8 = 19;
// 13 was the same until minor version 5.
const PREPARE: u8 = 20;
const ALLOC_MR_NEAR: u8 = 21;

/// What stands for no [`Class`] where one may be.
const NO_CLASS: u32 = 2;

impl Command<'_> {
    /// Writes the command; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    ///
    /// # Panics
    /// If a [`Command::Warm`] has more than [`WARM_GIDS_MAX`] GIDs.
    pub fn push(&self, to: &mut Producer, request: u32) -> Result<bool, Violation> {
        match *self {
            Command::CreateVqp(options) => to.push(CREATE_VQP, request, 2, |writer| {
                options.words().into_iter().for_each(|word| writer.put(word));
            }),
            Command::DestroyVqp { vqp } => {
                to.push(DESTROY_VQP, request, 1, |writer| writer.put(u64::from(vqp)))
            }
            Command::Bind { vqp, port } => {
                to.push(BIND, request, 1, |writer| writer.put(join(vqp, u32::from(port))))
            }
            Command::Connect { vqp, gid, port, options } => {
                to.push(CONNECT, request, 4, |writer| {
                    writer.put(join(vqp, u32::from(port)));
                    writer.put(u64::from(connect_word(options)));
                    put_gid(writer, &gid);
                })
            }
            Command::Warm { gids } => to.push(WARM, request, 1 + 2 * gids.len(), |writer| {
                writer.put(gids.len() as u64);
                for gid in gids {
                    put_gid(writer, gid);
                }
            }),
            Command::AllocMr { len, addr, access, huge } => {
                to.push(ALLOC_MR, request, 3, |writer| {
                    writer.put(len);
                    writer.put(addr);
                    writer.put(join(access.bits(), u32::from(huge)));
                })
            }
            Command::AllocMrNear { len, addr, access, huge, near } => {
                to.push(ALLOC_MR_NEAR, request, 4, |writer| {
                    writer.put(len);
                    writer.put(addr);
                    writer.put(join(access.bits(), u32::from(huge)));
                    writer.put(u64::from(near));
                })
            }
            Command::CarveMr { len, offset, addr, access } => {
                to.push(CARVE_MR, request, 4, |writer| {
                    writer.put(len);
                    writer.put(offset);
                    writer.put(addr);
                    writer.put(u64::from(access.bits()));
                })
            }
            Command::RegisterMr { addr, len, access } => {
                to.push(REGISTER_MR, request, 3, |writer| {
                    writer.put(len);
                    writer.put(addr);
                    writer.put(u64::from(access.bits()));
                })
            }
            Command::ShareMr { lkey, addr, access } => to.push(SHARE_MR, request, 2, |writer| {
                writer.put(addr);
                writer.put(join(lkey, access.bits()));
            }),
            Command::DeregisterMr { lkey } => {
                to.push(DEREGISTER_MR, request, 1, |writer| writer.put(u64::from(lkey)))
            }
            Command::QueryVqp { vqp } => {
                to.push(QUERY_VQP, request, 1, |writer| writer.put(u64::from(vqp)))
            }
            Command::Goodbye => to.push(GOODBYE, request, 0, |_| {}),
            Command::Prepare { heirs, vqps, mr_len, access } => {
                to.push(PREPARE, request, 3, |writer| {
                    writer.put(join(heirs, vqps));
                    writer.put(mr_len);
                    writer.put(u64::from(access.bits()));
                })
            }
            Command::PrepareVqp { set, gid, port, connect, options } => {
                to.push(PREPARE_VQP, request, 6, |writer| {
                    writer.put(join(set, u32::from(port)));
                    writer.put(u64::from(connect_word(connect)));
                    put_gid(writer, &gid);
                    options.words().into_iter().for_each(|word| writer.put(word));
                })
            }
            Command::Seal { set, addr, must_connect } => to.push(SEAL, request, 3, |writer| {
                writer.put(u64::from(set));
                writer.put(addr);
                writer.put(u64::from(must_connect));
            }),
            Command::Disown { set } => {
                to.push(DISOWN, request, 1, |writer| writer.put(u64::from(set)))
            }
            Command::Reach { vqp, rkey } => {
                to.push(REACH, request, 1, |writer| writer.put(join(vqp, rkey)))
            }
            Command::PrepareUnassigned { set, options } => {
                to.push(PREPARE_UNASSIGNED, request, 3, |writer| {
                    writer.put(u64::from(set));
                    options.words().into_iter().for_each(|word| writer.put(word));
                })
            }
            Command::Assign { set, heir, at, gid, port, connect } => {
                to.push(ASSIGN, request, 5, |writer| {
                    writer.put(join(set, heir));
                    writer.put(join(at, u32::from(port)));
                    writer.put(u64::from(connect_word(connect)));
                    put_gid(writer, &gid);
                })
            }
        }
    }
}

/// Reads a command back; `gids` takes those of a [`Command::Warm`].
pub(crate) fn decode<'a>(entry: &Entry, gids: &'a mut Vec<Gid>) -> Result<Command<'a>, Violation> {
    let mut fields = Reader::new(entry.words());
    Ok(match entry.kind {
        CREATE_VQP => Command::CreateVqp(vqp_options(fields.word()?, fields.word()?)?),
        DESTROY_VQP => Command::DestroyVqp { vqp: fields.word()? as u32 },
        BIND => {
            let (vqp, number) = halves(fields.word()?);
            Command::Bind { vqp, port: port(number, "port")? }
        }
        CONNECT => {
            let (vqp, number) = halves(fields.word()?);
            let options = connect_options(fields.word()?)?;
            Command::Connect { vqp, gid: fields.gid()?, port: port(number, "port")?, options }
        }
        WARM => {
            let count = fields.word()?;
            if count > WARM_GIDS_MAX as u64 {
                return Err(Violation::Field { field: "number of GIDs" });
            }
            gids.clear();
            for _ in 0..count {
                gids.push(fields.gid()?);
            }
            Command::Warm { gids }
        }
        ALLOC_MR => {
            let (len, addr) = (fields.word()?, fields.word()?);
            let (access, huge) = allocated(fields.word()?)?;
            Command::AllocMr { len, addr, access, huge }
        }
        ALLOC_MR_NEAR => {
            let (len, addr) = (fields.word()?, fields.word()?);
            let (access, huge) = allocated(fields.word()?)?;
            let near = u16::try_from(fields.word()?);
            let near = near.map_err(|_| Violation::Field { field: "NUMA node" })?;
            Command::AllocMrNear { len, addr, access, huge, near }
        }
        CARVE_MR => {
            let (len, offset, addr) = (fields.word()?, fields.word()?, fields.word()?);
            Command::CarveMr { len, offset, addr, access: access(fields.word()? as u32)? }
        }
        REGISTER_MR => {
            let (len, addr) = (fields.word()?, fields.word()?);
            Command::RegisterMr { addr, len, access: access(fields.word()? as u32)? }
        }
        SHARE_MR => {
            let (addr, (lkey, bits)) = (fields.word()?, halves(fields.word()?));
            Command::ShareMr { lkey, addr, access: access(bits)? }
        }
        DEREGISTER_MR => Command::DeregisterMr { lkey: fields.word()? as u32 },
        QUERY_VQP => Command::QueryVqp { vqp: fields.word()? as u32 },
        GOODBYE => Command::Goodbye,
        PREPARE => {
            let ((heirs, vqps), mr_len) = (halves(fields.word()?), fields.word()?);
            Command::Prepare { heirs, vqps, mr_len, access: access(fields.word()? as u32)? }
        }
        PREPARE_VQP => {
            let (set, number) = halves(fields.word()?);
            let connect = connect_options(fields.word()?)?;
            let (gid, port) = (fields.gid()?, port(number, "port")?);
            let options = vqp_options(fields.word()?, fields.word()?)?;
            Command::PrepareVqp { set, gid, port, connect, options }
        }
        SEAL => Command::Seal {
            set: fields.word()? as u32,
            addr: fields.word()?,
            must_connect: fields.word()? != 0,
        },
        DISOWN => Command::Disown { set: fields.word()? as u32 },
        REACH => {
            let (vqp, rkey) = halves(fields.word()?);
            Command::Reach { vqp, rkey }
        }
        PREPARE_UNASSIGNED => Command::PrepareUnassigned {
            set: fields.word()? as u32,
            options: vqp_options(fields.word()?, fields.word()?)?,
        },
        ASSIGN => {
            let ((set, heir), (at, number)) = (halves(fields.word()?), halves(fields.word()?));
            let connect = connect_options(fields.word()?)?;
            let (gid, port) = (fields.gid()?, port(number, "port")?);
            Command::Assign { set, heir, at, gid, port, connect }
        }
        kind => return Err(Violation::Kind { kind }),
    })
}

impl VqpOptions {
    pub(crate) fn words(self) -> [u64; 2] {
        let kind = self.class.map_or(NO_CLASS, |class| u32::from(class.code()))
            | u32::from(self.sq_sig_all) << 8
            | u32::from(self.confirm_sends) << 16;
        [join(self.max_send_wr, self.max_recv_wr), u64::from(kind)]
    }
}

pub(crate) fn vqp_options(lengths: u64, kind: u64) -> Result<VqpOptions, Violation> {
    let (max_send_wr, max_recv_wr) = halves(lengths);
    Ok(VqpOptions {
        class: match byte(kind, 0) {
            code if u32::from(code) == NO_CLASS => None,
            code => Some(known(Class::from_code(code), "class")?),
        },
        sq_sig_all: flag(byte(kind, 1), "sq_sig_all")?,
        confirm_sends: flag(byte(kind, 2), "confirm_sends")?,
        max_send_wr,
        max_recv_wr,
    })
}

pub(crate) fn connect_word(options: ConnectOptions) -> u32 {
    u32::from(options.policy.code()) | u32::from(options.uncached) << 8
}

pub(crate) fn connect_options(how: u64) -> Result<ConnectOptions, Violation> {
    Ok(ConnectOptions {
        policy: known(Policy::from_code(byte(how, 0)), "policy")?,
        uncached: flag(byte(how, 1), "uncached")?,
    })
}

/// What is allocated: its rights, and whether from huge pages.
fn allocated(word: u64) -> Result<(AccessFlags, bool), Violation> {
    let (bits, huge) = halves(word);
    let huge = flag(u8::try_from(huge).unwrap_or(u8::MAX), "huge")?;
    Ok((access(bits)?, huge))
}

fn access(bits: u32) -> Result<AccessFlags, Violation> {
    AccessFlags::from_bits(bits).ok_or(Violation::Field { field: "access" })
}
