use alloc::vec::Vec;
use core::marker::PhantomData;

use elver_verbs::{AccessFlags, Device, Gid, MrInfo, PostError, RecvWr, SendWr, Time};

use crate::{
    ClientId, ClientLimits, Completion, Config, ConnectError, CoreError, Event, MetaServer,
    NodeRecord, PeerInfo, Stats, Via, VqpId,
};

/// The node's heart: all VQPs of all clients on one device and one pool of physical QPs.
///
/// It does no IO and has no clock. Its host calls [`Core::poll`] whenever there may be something to
/// do, and at [`Core::poll_timeout`]; takes completions with [`Core::poll_completions`] and events
/// with [`Core::poll_event`].
pub struct Core<D: Device> {
    device: D,
    todo: PhantomData<Vec<u8>>,
}

/// Priority of a VQP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Has QPs reserved and is never slowed for others.
    High,
    /// Shares QPs, and yields to the high class.
    #[default]
    Low,
}

/// How a VQP gets its physical QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Algorithm 1: a shared RC QP if there is one, else a DC QP and the peer's metadata from the
    /// DCCache or a meta server.
    #[default]
    Shared,
    /// As LITE, with the handshake over UD that KRCORE gives it: a shared RC QP, made on a miss.
    Lite,
    /// As [`Policy::Shared`], but metadata is asked of the peer itself, by an RPC over UD.
    RpcMeta,
    /// An RC QP for this VQP alone, as a process with verbs makes it.
    Leased,
}

/// What a VQP is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpInit {
    /// Priority.
    pub class: Class,
    /// Most outstanding send WRs.
    pub max_send_wr: u32,
    /// Most outstanding receive WRs.
    pub max_recv_wr: u32,
    /// Whether every send WR is signalled.
    pub sq_sig_all: bool,
}

impl Default for VqpInit {
    fn default() -> VqpInit {
        VqpInit { class: Class::Low, max_send_wr: 128, max_recv_wr: 128, sq_sig_all: false }
    }
}

/// How to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// How the VQP gets its physical QP.
    pub policy: Policy,
    /// Do not look at the DCCache or at RC QPs, as if this was the first contact: for measurements.
    pub uncached: bool,
}

/// State of a VQP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VqpState {
    /// Created.
    Idle,
    /// A `qconnect` is pending.
    Connecting,
    /// Connected: it can post.
    Connected,
    /// Something failed; what was outstanding is flushed. `qconnect` takes it out of here.
    Error,
}

/// A VQP as `elver status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpInfo {
    /// Its id.
    pub vqp: VqpId,
    /// Its owner.
    pub client: ClientId,
    /// Its state.
    pub state: VqpState,
    /// The port that it is bound to.
    pub bound: Option<u16>,
    /// The peer and its port.
    pub peer: Option<(Gid, u16)>,
    /// What backs it now.
    pub via: Option<Via>,
    /// Priority.
    pub class: Class,
    /// WRs posted and not completed.
    pub outstanding: u32,
    /// Times that it moved between DC and RC.
    pub transfers: u32,
}

#[allow(unused_variables)]
impl<D: Device> Core<D> {
    /// A core on a device that is its own. `seed` gives all its randomness: keys, ids.
    pub fn new(device: D, config: Config, seed: u64, now: Time) -> Result<Core<D>, CoreError> {
        todo!()
    }

    /// The device, to drive and to ask; its objects are the core's.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// This node's GID.
    pub fn gid(&self) -> Gid {
        todo!()
    }

    /// What others must know of this node.
    pub fn record(&self) -> NodeRecord {
        todo!()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        todo!()
    }

    // Membership: what the registry tells.

    /// The meta servers, the preferred one first. RC QPs to them are made at once.
    pub fn set_meta_servers(&mut self, servers: &[MetaServer], now: Time) {
        todo!()
    }

    /// A node went away (`None`) or came with this record: the DCCache forgets another one.
    pub fn node_changed(&mut self, gid: Gid, record: Option<NodeRecord>, now: Time) {
        todo!()
    }

    /// Takes the meta server's role: makes the table of nodes, for `capacity` of them.
    pub fn serve_meta(&mut self, capacity: u32) -> Result<MetaServer, CoreError> {
        todo!()
    }

    /// Writes a node's record into the table; a meta server's call.
    pub fn meta_put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), CoreError> {
        todo!()
    }

    /// Takes a node out of the table; whether it was there.
    pub fn meta_remove(&mut self, gid: Gid) -> bool {
        todo!()
    }

    // Clients.

    /// Admits a client.
    pub fn client_open(&mut self, limits: ClientLimits) -> Result<ClientId, CoreError> {
        todo!()
    }

    /// The client is gone: its VQPs and regions go, as soon as nothing in flight needs them.
    pub fn client_close(&mut self, client: ClientId, now: Time) {
        todo!()
    }

    /// Whether anything of a closed client is left.
    pub fn client_is_gone(&self, client: ClientId) -> bool {
        todo!()
    }

    // Memory.

    /// Registers memory for a client. Peers find it in ValidMR if `access` opens it to them.
    pub fn reg_mr(
        &mut self,
        client: ClientId,
        memory: D::Memory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, CoreError> {
        todo!()
    }

    /// Deregisters a region: no new WR may use it; once peers' leases have run out and work in
    /// flight has ended, [`Event::Deregistered`] comes.
    pub fn dereg_mr(
        &mut self,
        client: ClientId,
        lkey: u32,
        token: u64,
        now: Time,
    ) -> Result<(), CoreError> {
        todo!()
    }

    // VQPs.

    /// Creates a VQP (Algorithm 1, `vqp_create`).
    pub fn vqp_create(&mut self, client: ClientId, init: VqpInit) -> Result<VqpId, CoreError> {
        todo!()
    }

    /// Destroys a VQP. What it has outstanding completes to nobody.
    pub fn vqp_destroy(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        now: Time,
    ) -> Result<(), CoreError> {
        todo!()
    }

    /// Lets messages to `port` of this node come to the VQP. Port 0 takes a free one; returns the
    /// port.
    pub fn qbind(&mut self, client: ClientId, vqp: VqpId, port: u16) -> Result<u16, CoreError> {
        todo!()
    }

    /// Connects a VQP (Algorithm 1, `vqp_connect`). `Ok(Some)` if that was at hand; otherwise
    /// [`Event::Connected`] with the token follows.
    pub fn qconnect(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        gid: Gid,
        port: u16,
        options: ConnectOptions,
        token: u64,
        now: Time,
    ) -> Result<Option<Via>, CoreError> {
        todo!()
    }

    /// Gets the metadata of many peers at once, ahead of connecting. [`Event::Warmed`] follows.
    pub fn warm(
        &mut self,
        client: ClientId,
        gids: &[Gid],
        token: u64,
        now: Time,
    ) -> Result<(), CoreError> {
        todo!()
    }

    /// Posts send WRs (Algorithm 2, `post_send_virtualized`). On an error the WRs before the
    /// refused one are posted. What only the peer can refuse, its region above all, is told by a
    /// completion.
    pub fn post_send(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[SendWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        todo!()
    }

    /// Posts receives.
    pub fn post_recv(
        &mut self,
        client: ClientId,
        vqp: VqpId,
        wrs: &[RecvWr<'_>],
        now: Time,
    ) -> Result<(), (usize, PostError)> {
        todo!()
    }

    /// Takes completions of all VQPs of a client, oldest first; returns how many.
    pub fn poll_completions(&mut self, client: ClientId, into: &mut [Completion]) -> usize {
        todo!()
    }

    /// Takes an event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// A client that has completions to take, each once until more come: what a host that serves
    /// many asks instead of looking at all.
    pub fn poll_ready(&mut self) -> Option<ClientId> {
        todo!()
    }

    /// Drives the device, takes what it completed and does what is due. Returns whether anything
    /// happened.
    pub fn poll(&mut self, now: Time) -> bool {
        todo!()
    }

    /// When [`Core::poll`] must be called next, if nothing comes from the device before.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }

    // What is.

    /// A VQP's state.
    pub fn vqp_info(&self, client: ClientId, vqp: VqpId) -> Result<VqpInfo, CoreError> {
        todo!()
    }

    /// All VQPs.
    pub fn vqps(&self) -> impl Iterator<Item = VqpInfo> + '_ {
        core::iter::empty()
    }

    /// All peers that are remembered.
    pub fn peers(&self) -> impl Iterator<Item = PeerInfo> + '_ {
        core::iter::empty()
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        todo!()
    }

    /// Bytes that connections take: the pool, the peers, the caches; without message buffers, as
    /// KRCORE counts them (section 5.2, figure 15a).
    pub fn connection_bytes(&self) -> u64 {
        todo!()
    }
}
