//! The desk of a session: what its commands come to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use elver_core::{Core, VqpId};
use elver_portal::{
    ARENA_BYTES, Answer, Command, ConnectOptions, Message, Peer, RefusalCode, Socket, Violation,
    numa,
};
use elver_soft::{Copier, ProcessMemory, SoftDevice, SoftMemory};
use elver_verbs::{AccessFlags, Gid, Time};
use rustix::process::{Pid, getpid};

use super::account::{Account, Customer};
use super::heirs::Parent;
use super::held::Held;
use super::leases;
use super::looks::{Look, Looks};
use super::maker::Maker;
use super::orders::{Awaiting, Cleared, Order, Piece};
use super::quota::{Quotas, Usage};
use super::session::{Open, Owed, Region, Session};
use super::sessions::Sessions;
use super::translate::{self, Refused};

/// Commands of a session whose answer is to come.
pub(super) const PENDING_MAX: u32 = 65_536;
/// Bytes of the largest region that the node allocates: no machine has as many, and sums of them
/// stay in range.
const ALLOC_BYTES_MAX: u64 = 1 << 46;

/// What a command comes to: an answer now, or later.
pub(super) type Outcome = Result<Option<Answer<'static>>, Refused>;

/// What the engine has for the commands of all sessions.
pub(super) struct Tools<'a> {
    pub(super) core: &'a mut Core<SoftDevice>,
    pub(super) maker: &'a Maker,
    pub(super) looks: &'a mut Looks,
    pub(super) copier: &'a Arc<Copier>,
}

/// Where the commands of one session are dealt with, one after the other.
pub(super) struct Desk<'a> {
    pub(super) tools: Tools<'a>,
    quotas: &'a mut Quotas,
    socket: &'a Socket,
    pub(super) open: &'a mut Open,
    process: Option<&'a OwnedFd>,
    pub(super) who: Who,
    now: Time,
}

/// Whose command it is.
#[derive(Clone, Copy)]
pub(super) struct Who {
    pid: Option<Pid>,
    uid: u32,
    gid: u32,
    account: Account,
    is_trusted: bool,
    slot: u32,
    serial: u32,
}

impl Who {
    fn of(peer: Peer, customer: Customer, slot: u32, serial: u32) -> Who {
        let (Peer { pid, uid, gid }, Customer { account, is_trusted }) = (peer, customer);
        Who { pid, uid, gid, account, is_trusted, slot, serial }
    }

    fn customer(&self) -> Customer {
        Customer { account: self.account, is_trusted: self.is_trusted }
    }

    /// What tells the session from all others.
    pub(super) fn token(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    pub(super) fn as_parent(&self) -> Parent {
        let Who { pid, uid, gid, .. } = *self;
        Parent { token: self.token(), pid, uid, gid, customer: self.customer() }
    }
}

impl<'a> Desk<'a> {
    /// That of a session which has begun.
    pub(super) fn of(
        sessions: &'a mut Sessions,
        slot: u32,
        tools: Tools<'a>,
        now: Time,
    ) -> Option<Desk<'a>> {
        let (session, quotas) = sessions.get_with_quotas(slot)?;
        let who = Who::of(session.peer, session.customer, slot, session.serial);
        let Session { socket, process, open, .. } = session;
        let (open, process) = (open.as_mut()?, process.as_ref());
        Some(Desk { tools, quotas, socket, open, process, who, now })
    }

    pub(super) fn command(&mut self, request: u32, command: Command<'_>) -> Outcome {
        let (client, now) = (self.open.client, self.now);
        if self.open.pending >= PENDING_MAX {
            let text = format!("{PENDING_MAX} commands wait for their answer already");
            return Err(Refused::new(RefusalCode::Busy, text));
        }
        match command {
            Command::CreateVqp(options) => self.create_vqp(options),
            Command::DestroyVqp { vqp } => {
                self.tools.core.vqp_destroy(client, VqpId(vqp), now)?;
                if self.open.vqps.remove(&vqp).is_some() {
                    self.quotas.give_back(self.who.account, Usage::VQP);
                }
                let lease = self.open.leases.end(vqp);
                if self.tools.core.is_going(client, VqpId(vqp)) {
                    self.quotas.give_back_later(self.who.account, lease, (client, VqpId(vqp)));
                } else {
                    self.quotas.give_back(self.who.account, lease);
                }
                if self.open.bound.remove(&vqp) {
                    self.quotas.give_back(self.who.account, Usage::PORT);
                }
                self.open.goes_direct_no_more(vqp);
                Ok(Some(Answer::Done))
            }
            Command::Bind { vqp, port } => self.bind(vqp, port),
            Command::Connect { vqp, gid, port, options } => {
                self.connect(request, vqp, (gid, port), options)
            }
            Command::Warm { gids } => self.warm(gids, request),
            Command::AllocMr { len, addr, access, huge } => {
                self.alloc(request, (len, addr), access, (huge, None))
            }
            Command::AllocMrNear { len, addr, access, huge, near } => {
                let near = wish(near, numa::nodes())?;
                self.alloc(request, (len, addr), access, (huge, near))
            }
            Command::CarveMr { len, offset, addr, access } => self.carve(len, offset, addr, access),
            Command::RegisterMr { addr, len, access } => {
                self.register(request, (len, addr), access)
            }
            Command::DeregisterMr { lkey } => self.deregister(request, lkey),
            Command::QueryVqp { vqp } => {
                let info = self.tools.core.vqp_info(client, VqpId(vqp))?;
                Ok(Some(Answer::Info(translate::vqp_info(&info))))
            }
            // They concern more than one session, or its end, and are done where all are at hand.
            Command::ShareMr { .. }
            | Command::Goodbye
            | Command::Prepare { .. }
            | Command::PrepareVqp { .. }
            | Command::Seal { .. }
            | Command::Disown { .. }
            | Command::PrepareUnassigned { .. }
            | Command::Assign { .. }
            | Command::Reach { .. } => Err(Refused::parted()),
        }
    }

    fn create_vqp(&mut self, options: elver_portal::VqpOptions) -> Outcome {
        let class = self.quotas.class_of(
            self.who.customer(),
            (self.who.uid, self.who.gid),
            options.class,
        )?;
        self.quotas.take(self.who.account, Usage::VQP)?;
        match self.tools.core.vqp_create(self.open.client, translate::vqp_init(options, class)) {
            Ok(VqpId(vqp)) => {
                self.open.vqps.insert(vqp, options.max_send_wr);
                Ok(Some(Answer::Vqp(vqp)))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, Usage::VQP);
                Err(error.into())
            }
        }
    }

    /// A leased queue pair counts in place of what the VQP had, from now on.
    fn connect(
        &mut self,
        request: u32,
        vqp: u32,
        (gid, port): (Gid, u16),
        options: ConnectOptions,
    ) -> Outcome {
        let (client, now, account) = (self.open.client, self.now, self.who.account);
        self.tools.core.vqp_info(client, VqpId(vqp))?;
        self.open.goes_direct_no_more(vqp);
        let had = self.open.leases.of(vqp);
        let wants = leases::asks(&options).then(|| {
            let max_send_wr = self.open.vqps.get(&vqp).copied().unwrap_or(u32::MAX);
            leases::wrs(max_send_wr, self.tools.core.config().sq_depth)
        });
        let wanted = wants.map_or(Usage::NONE, Usage::leased);
        // Who has it already is not asked whether he may.
        let more = wanted.minus(had);
        self.quotas.take(account, more)?;
        let connect = wants.map(|_| self.open.leases.next());
        // What the process chooses for its request may come twice.
        let token = u64::from(connect.unwrap_or(0)) << 32 | u64::from(request);
        match self.tools.core.qconnect(client, VqpId(vqp), gid, port, options, token, now) {
            Ok(via) => {
                self.quotas.give_back(account, had.minus(wanted));
                self.open.leases.end(vqp);
                if let (Some(wrs), Some(connect)) = (wants, connect) {
                    self.open.leases.begin(vqp, wrs, connect);
                }
                Ok(via.map(Answer::Connected))
            }
            Err(error) => {
                self.quotas.give_back(account, more);
                // It may have been let go of for what was refused then.
                let info = self.tools.core.vqp_info(client, VqpId(vqp));
                if info.is_ok_and(|info| info.peer.is_none()) {
                    self.quotas.give_back(account, had);
                    self.open.leases.end(vqp);
                }
                Err(error.into())
            }
        }
    }

    fn bind(&mut self, vqp: u32, port: u16) -> Outcome {
        self.quotas.take(self.who.account, Usage::PORT)?;
        match self.tools.core.qbind(self.open.client, VqpId(vqp), port) {
            Ok(port) => {
                self.open.bound.insert(vqp);
                Ok(Some(Answer::Port(port)))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, Usage::PORT);
                Err(error.into())
            }
        }
    }

    fn warm(&mut self, gids: &[Gid], request: u32) -> Outcome {
        self.tools.core.warm(self.open.client, gids, request.into(), self.now)?;
        Ok(None)
    }

    fn alloc(
        &mut self,
        request: u32,
        (len, addr): (u64, u64),
        access: AccessFlags,
        (huge, near): (bool, Option<u16>),
    ) -> Outcome {
        self.fresh_request(request)?;
        if len > ALLOC_BYTES_MAX {
            let text = format!("{len} bytes in one region, and at most {ALLOC_BYTES_MAX} can be");
            return Err(Refused::new(RefusalCode::OutOfRange, text));
        }
        let (slot, serial) = (self.who.slot, self.who.serial);
        // Who maps a huge page can give it back, and where no other is free the node's next access
        // would kill it.
        let huge = huge && self.who.is_trusted;
        let held = (!self.quotas.is_exempt(self.who.account))
            .then(|| self.quotas.of(self.who.account).bytes);
        let account = self.who.account;
        let order = Order { slot, serial, request, account, len, addr, access, huge, near, held };
        // Large memory takes long to make, and as long to give back.
        self.tools.core.may_reg_mr(self.open.client, (addr, len.max(1)), access)?;
        let usage = order.usage();
        self.quotas.take(self.who.account, usage)?;
        let made =
            self.tools.maker.make(order).map_err(NotHanded::from).and_then(|made| match made {
                Some(piece) => {
                    let tools = (&mut *self.tools.core, self.tools.maker);
                    hand_over(tools, self.socket, self.open, &order, piece, usage).map(Some)
                }
                None => {
                    self.open.ordered.insert(request, usage);
                    Ok(None)
                }
            });
        made.map_err(|NotHanded { refused, kept }| {
            if !kept {
                self.quotas.give_back(self.who.account, usage);
            }
            refused
        })
    }

    fn register(&mut self, request: u32, (len, addr): (u64, u64), access: AccessFlags) -> Outcome {
        let process = match &self.open.process {
            Some(process) => process.clone(),
            None => self.open.process.insert(self.process()?).clone(),
        };
        if !process.is_guarded() {
            let memory = SoftMemory::of_process(process, addr, len)?;
            return self.register_as(memory, addr, access);
        }
        self.fresh_request(request)?;
        let usage = Usage::region(0);
        self.quotas.take(self.who.account, usage)?;
        let (slot, serial) = (self.who.slot, self.who.serial);
        let payer = self.who.account.number();
        let look = Look { slot, serial, request, addr, access, payer };
        if let Err(error) = self.tools.looks.begin(look, process, len) {
            self.quotas.give_back(self.who.account, usage);
            return Err(error.into());
        }
        // Among what is leaving, so that it counts if the process dies now.
        self.open.leaving.insert(request, Region { usage, memory: None, backing: None });
        Ok(None)
    }

    /// Registers a piece of the arena. Its bytes count with the session.
    fn carve(&mut self, len: u64, offset: u64, addr: u64, access: AccessFlags) -> Outcome {
        let memory = self.open.arena.part(offset, len).map_err(|_| {
            let text = format!(
                "{len} bytes at offset {offset} do not lie in a session's arena of {ARENA_BYTES}"
            );
            Refused::new(RefusalCode::OutOfRange, text)
        })?;
        self.register_as(memory, addr, access)
    }

    /// Registers memory whose bytes count for nobody.
    fn register_as(&mut self, memory: SoftMemory, addr: u64, access: AccessFlags) -> Outcome {
        let usage = Usage::region(0);
        self.quotas.take(self.who.account, usage)?;
        match self.tools.core.reg_mr(self.open.client, memory, Some(addr), access) {
            Ok(info) => {
                let region = Region { usage, memory: None, backing: None };
                self.open.regions.insert(info.lkey, region);
                Ok(Some(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: 0 }))
            }
            Err(error) => {
                self.quotas.give_back(self.who.account, usage);
                Err(error.into())
            }
        }
    }

    fn process(&self) -> Result<Arc<ProcessMemory>, Refused> {
        let unseen = || {
            let text =
                "the process is none that the node can see: it runs in another PID namespace";
            Refused::new(RefusalCode::Permission, text)
        };
        let pid = self.who.pid.ok_or_else(unseen)?;
        let Some(process) = self.process else {
            if pid != getpid() {
                return Err(unseen());
            }
            // Whoever drives its own node waits for its own pages.
            let process = self.socket.peer_pidfd()?;
            return Ok(Arc::new(ProcessMemory::open(pid, self.who.uid, process)?));
        };
        let payer = self.who.account.number();
        if self.tools.copier.refuses(payer) {
            let text = "memory of a process of this user's took too long to read; try again later, or \
                        allocate it at the node instead (Session::alloc)";
            return Err(Refused::new(RefusalCode::Busy, text));
        }
        // Not by its number alone, which another process may have by now. Nothing of it is opened here: who
        // does may have to wait for it.
        let (uid, process, copier) =
            (self.who.uid, process.try_clone()?, self.tools.copier.clone());
        Ok(Arc::new(if self.who.is_trusted {
            ProcessMemory::guarded_where_absent(pid, uid, process, copier, payer)
        } else {
            ProcessMemory::guarded(pid, uid, process, copier, payer)
        }))
    }

    fn deregister(&mut self, request: u32, lkey: u32) -> Outcome {
        self.fresh_request(request)?;
        self.tools.core.dereg_mr(self.open.client, lkey, request.into(), self.now)?;
        if let Some(region) = self.open.regions.remove(&lkey) {
            self.open.leaving.insert(request, region);
        }
        Ok(None)
    }

    /// Two commands that wait must not have one number, or one would take the other's place.
    fn fresh_request(&self, request: u32) -> Result<(), Refused> {
        if self.open.leaving.contains_key(&request) || self.open.ordered.contains_key(&request) {
            let text = format!("a command of number {request} waits already");
            return Err(Refused::new(RefusalCode::State, text));
        }
        Ok(())
    }
}

/// The NUMA node where a process wants memory, if it makes a difference on a machine of such nodes; of which a system that
/// tells of none may know.
fn wish(node: u16, nodes: &[u16]) -> Result<Option<u16>, Refused> {
    if nodes.is_empty() || nodes.contains(&node) {
        return Ok((nodes.len() != 1).then_some(node));
    }
    let text = format!("NUMA node {node} has no memory here; those that have are {nodes:?}");
    Err(Refused::new(RefusalCode::OutOfRange, text))
}

impl Open {
    /// Tells what a command came to, unless that is still to be seen; whether it was refused, as a number.
    pub(super) fn conclude(&mut self, request: u32, outcome: Outcome) -> Result<u64, Violation> {
        match outcome {
            Ok(Some(answer)) => self.reply(Owed::Answer { request, answer })?,
            Ok(None) => self.pending += 1,
            Err(refused) => {
                self.reply(Owed::Refused { request, refused })?;
                return Ok(1);
            }
        }
        Ok(0)
    }
}

/// Registers memory that was made, and sends its file. `usage` is taken from the user's quota
/// already.
pub(super) fn hand_over(
    (core, maker): (&mut Core<SoftDevice>, &Maker),
    socket: &Socket,
    open: &mut Open,
    order: &Order,
    piece: Piece,
    usage: Usage,
) -> Result<Answer<'static>, NotHanded> {
    let memory = piece.memory.clone();
    let info = match core.reg_mr(open.client, memory, Some(order.addr), order.access) {
        Ok(info) => info,
        Err(error) => {
            let cleared = Cleared { account: order.account, usage, awaited_by: Awaiting::Nobody };
            let kept = !maker.give_back(piece.memory, piece.bytes, cleared);
            return Err(NotHanded { refused: error.into(), kept });
        }
    };
    let memory = Some(Held::new(piece.memory, order.addr));
    let backing = Some(piece.file.clone());
    open.regions.insert(info.lkey, Region { usage, memory, backing });
    piece.file.is_had_by(order.account);
    let message = Message::Memory { request: order.request };
    // A client that does not read its socket keeps the region, unusable, until it ends.
    socket
        .send(&message, Some(piece.file.as_fd()))
        .map_err(|error| NotHanded { refused: error.into(), kept: true })?;
    Ok(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: piece.bytes })
}

/// Why memory was not handed over, and whether it counts all the same.
pub(super) struct NotHanded {
    pub(super) refused: Refused,
    pub(super) kept: bool,
}

impl From<io::Error> for NotHanded {
    fn from(error: io::Error) -> NotHanded {
        NotHanded { refused: error.into(), kept: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_memory_is_refused_and_where_there_is_one_nothing_is_asked_for() {
        assert_eq!(wish(0, &[0]).unwrap(), None);
        assert_eq!(wish(0, &[0, 1]).unwrap(), Some(0));
        assert_eq!(wish(1, &[0, 1]).unwrap(), Some(1));
        assert_eq!(wish(7, &[]).unwrap(), Some(7));
        for nodes in [&[0][..], &[0, 2]] {
            let Refused { code, text, .. } = wish(1, nodes).unwrap_err();
            assert_eq!(code, RefusalCode::OutOfRange);
            assert!(text.contains("node 1 ") && text.contains(&format!("{nodes:?}")), "{text}");
        }
    }
}
