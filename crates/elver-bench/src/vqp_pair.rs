//! VQPs of two nodes, with a wire between them.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use elver_core::{
    ClientId, ClientLimits, Completion, Config, ConnectOptions, Core, Event, MetaServer, Policy,
    Via, VqpId, VqpInit,
};
use elver_rnic::Rnic;
use elver_soft::SoftMemory;
use elver_verbs::{
    AccessFlags, Device, Gid, MrInfo, Payload, QpType, RecvWr, RemoteAddr, SendFlags, SendWr, Sge,
    Wc, WcStatus,
};

use crate::bare::{Bare, NOW};
use crate::host::OUTSTANDING_MAX;
use crate::pipe::Pipe;
use crate::sides::{initiator_side, target_side};
use crate::step::{Operation, Step};

pub(crate) const PORT: u16 = 1;
/// Nodes that the meta server's table holds.
const NODES_MAX: u32 = 1_000;
const MEMORY_BYTES: u64 = 1 << 12;
/// Rounds after which what did not happen will not.
pub(crate) const ROUNDS_MAX: u32 = 1_000;
pub(crate) const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_WRITE);

/// WRs of `bytes` bytes through a VQP that is backed by RC or DC, `batch` at a time, the last of them
/// with a completion. A SEND's receive is posted anew by the target, a batch in one call.
pub(crate) fn exchange(
    backing: QpType,
    operation: Operation,
    bytes: u32,
    batch: u32,
) -> Result<Step> {
    let (mut net, server) = Net::new(backing)?;
    let bound = net.b.core.vqp_create(net.b.client, VqpInit::default())?;
    net.b.core.qbind(net.b.client, bound, PORT)?;
    let vqp = net.connect(server, backing)?;

    let op = operation.towards(net.b.remote());
    let sges = [net.a.sge(bytes)];
    let receives = if operation == Operation::Send { batch } else { 0 };
    Ok(Box::new(move || {
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::empty(), payload, dest: None };
        let mut wrs = [wr; OUTSTANDING_MAX as usize];
        let wrs = &mut wrs[..batch as usize];
        wrs[batch as usize - 1].flags = SendFlags::SIGNALED;
        let room = [net.b.sge(bytes)];
        let receive = [RecvWr { wr_id: 0, sges: &room }; OUTSTANDING_MAX as usize];
        let receive = &receive[..receives as usize];
        target_side(|| net.b.core.post_recv(net.b.client, bound, receive, NOW))
            .expect("the receive queue has room");
        initiator_side(|| net.a.core.post_send(net.a.client, vqp, wrs, NOW))
            .expect("the send queue has room");
        let (mut completed, mut received) = (0, 0);
        while completed == 0 || received < receives {
            let (sent, taken) = net.round();
            (completed, received) = (completed + sent, received + taken);
        }
    }))
}

/// So many VQPs of the first node that connect at once to the other one, which is the meta server that is
/// asked for it: all share one READ. They are created meanwhile, or before the count; they are destroyed
/// outside of it.
pub(crate) fn connect(count: u32, creates: bool) -> Result<Step> {
    let (mut net, server) = Net::new(QpType::Dci)?;
    net.connect(server, QpType::Dci)?;
    let options = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    let mut vqps = Vec::with_capacity(count as usize);
    Ok(Box::new(move || {
        let create = |net: &mut Net, vqps: &mut Vec<VqpId>| {
            let Node { core, client, .. } = &mut net.a;
            let made = (0..count).map(|_| core.vqp_create(*client, VqpInit::default()));
            vqps.extend(made.map(|vqp| vqp.expect("there is room")));
        };
        if !creates {
            create(&mut net, &mut vqps);
        }
        initiator_side(|| {
            if creates {
                create(&mut net, &mut vqps);
            }
            let Node { core, client, .. } = &mut net.a;
            for vqp in &vqps {
                let via = core.qconnect(*client, *vqp, server.gid, PORT, options, 0, NOW);
                assert_eq!(via, Ok(None));
            }
        });
        let mut connected = 0;
        for _ in 0..ROUNDS_MAX {
            net.round();
            connected += initiator_side(|| net.a.connected());
            if connected == count {
                break;
            }
        }
        assert_eq!(connected, count);
        for vqp in vqps.drain(..) {
            net.a.core.vqp_destroy(net.a.client, vqp, NOW).expect("it is there");
        }
    }))
}

/// A core on a device of its own.
pub(crate) struct Node {
    pub(crate) core: Core<Bare>,
    pub(crate) client: ClientId,
    mr: MrInfo,
    /// Kept, so that clearing it is not counted.
    completions: [Completion; OUTSTANDING_MAX as usize],
}

pub(crate) struct Net {
    pub(crate) a: Node,
    pub(crate) b: Node,
    to_a: Pipe,
    to_b: Pipe,
}

impl Node {
    fn new(number: u8, config: Config) -> Result<Node> {
        let rnic = elver_rnic::Config::for_address(IpAddr::from([10, 0, 0, number]));
        let device = Bare(Rnic::new(rnic, u64::from(number))?);
        let mut core = Core::new(device, config, u64::from(number), NOW)?;
        let client = core.client_open(ClientLimits::default())?;
        let memory = core.device().alloc_memory(MEMORY_BYTES)?;
        let mr = core.reg_mr(client, memory, None, ACCESS)?;
        let none = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
        Ok(Node { core, client, mr, completions: [none; OUTSTANDING_MAX as usize] })
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr, length, lkey: self.mr.lkey }
    }

    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr, rkey: self.mr.rkey }
    }

    fn nic(&mut self) -> &mut Rnic<SoftMemory> {
        &mut self.core.device().0
    }

    /// Takes the ends of connects that are there; returns how many.
    fn connected(&mut self) -> u32 {
        let mut count = 0;
        while let Some(event) = self.core.poll_event() {
            let looked_up = matches!(event, Event::Connected { result: Ok(Via::DcLookup), .. });
            assert!(looked_up, "{event:?}");
            count += 1;
        }
        count
    }

    /// Takes the completions that are there; returns how many.
    fn completions(&mut self) -> u32 {
        let count = self.core.poll_completions(self.client, &mut self.completions);
        for completion in &self.completions[..count] {
            assert!(completion.wc.status == WcStatus::Success, "{completion:?}");
        }
        count as u32
    }
}

impl Net {
    /// Two nodes, of which the second is the meta server.
    pub(crate) fn new(backing: QpType) -> Result<(Net, MetaServer)> {
        let mut config = Config::default();
        if backing == QpType::Dci {
            config.transfer.rc_qps_max = 0;
        }
        let mut b = Node::new(2, config.clone())?;
        let server = b.core.serve_meta(NODES_MAX)?;
        let a = Node::new(1, config)?;
        // A node makes queue pairs for those alone whom the table knows.
        for (gid, record) in [(a.core.gid(), a.core.record()), (b.core.gid(), b.core.record())] {
            b.core.meta_put(gid, record)?;
        }
        // Nor does it believe a table of its own that nobody is told to ask.
        b.core.set_meta_servers(&[server], NOW);
        Ok((Net { a, b, to_a: Pipe::new(), to_b: Pipe::new() }, server))
    }

    /// Packets go there and back once; returns the completions of either side.
    pub(crate) fn round(&mut self) -> (u32, u32) {
        let Net { a, b, to_a, to_b } = self;
        initiator_side(|| to_b.fill(a.nic(), NOW));
        let received = target_side(|| {
            to_b.drain(b.nic(), NOW);
            b.core.poll(NOW);
            to_a.fill(b.nic(), NOW);
            b.completions()
        });
        let completed = initiator_side(|| {
            to_a.drain(a.nic(), NOW);
            a.core.poll(NOW);
            a.completions()
        });
        (completed, received)
    }

    /// A VQP of the first node's to the other one, which is the meta server.
    pub(crate) fn connect(&mut self, server: MetaServer, backing: QpType) -> Result<VqpId> {
        self.a.core.set_meta_servers(&[server], NOW);
        self.connect_from(|net| &mut net.a, server.gid, backing)
    }

    /// The same the other way.
    pub(crate) fn connect_back(&mut self, backing: QpType) -> Result<VqpId> {
        let gid = self.a.core.gid();
        self.connect_from(|net| &mut net.b, gid, backing)
    }

    fn connect_from(
        &mut self,
        node: fn(&mut Net) -> &mut Node,
        gid: Gid,
        backing: QpType,
    ) -> Result<VqpId> {
        let (wanted, policy) = match backing {
            QpType::Dci => (Via::DcCached, Policy::Shared),
            _ => (Via::Rc, Policy::Lite),
        };
        let options = ConnectOptions { policy, ..ConnectOptions::default() };
        for _ in 0..ROUNDS_MAX {
            let Node { core, client, .. } = node(self);
            let vqp = core.vqp_create(*client, VqpInit::default())?;
            if core.qconnect(*client, vqp, gid, PORT, options, 0, NOW)? == Some(wanted) {
                return Ok(vqp);
            }
            core.vqp_destroy(*client, vqp, NOW)?;
            self.round();
            while let Some(event) = node(self).core.poll_event() {
                ensure!(!matches!(event, Event::Failed { .. }), "{event:?}");
            }
        }
        anyhow::bail!("no VQP came to be backed by {wanted:?}")
    }
}
