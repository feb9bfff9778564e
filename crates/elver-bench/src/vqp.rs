//! VQPs of one node: what the core adds to WRs that run from MR to MR.

use std::net::IpAddr;

use anyhow::Result;
use elver_core::{
    ClientId, ClientLimits, Completion, Config, ConnectOptions, Core, Event, Via, VqpId, VqpInit,
};
use elver_rnic::Rnic;
use elver_verbs::{
    AccessFlags, Device, Gid, MrInfo, Payload, RemoteAddr, SendFlags, SendWr, Sge, Wc, WcStatus,
};

use crate::bare::{Bare, NOW};
use crate::host::OUTSTANDING_MAX;
use crate::sides::initiator_side;
use crate::step::{Operation, Step};

const SEED: u64 = 1;
const PORT: u16 = 1;
/// Nodes that the meta server's table holds.
const NODES_MAX: u32 = 1_000;
const MEMORY_BYTES: u64 = 1 << 12;
const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_WRITE);

/// A core on a device of its own, which is all the network that it knows.
struct Node {
    core: Core<Bare>,
    client: ClientId,
    mr: MrInfo,
    /// Kept, so that clearing it is not counted.
    completions: [Completion; OUTSTANDING_MAX as usize],
}

/// WRs of `bytes` bytes through a VQP, `batch` at a time, the last of them with a completion.
pub(crate) fn exchange(operation: Operation, bytes: u32, batch: u32) -> Result<Step> {
    let mut node = Node::new()?;
    let vqp = node.connect();
    let (addr, lkey, rkey) = (node.mr.addr, node.mr.lkey, node.mr.rkey);
    let op = operation.towards(RemoteAddr { addr, rkey });
    let sges = [Sge { addr, length: bytes, lkey }];
    Ok(Box::new(move || {
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: 7, op, flags: SendFlags::empty(), payload, dest: None };
        let mut wrs = [wr; OUTSTANDING_MAX as usize];
        let wrs = &mut wrs[..batch as usize];
        wrs[batch as usize - 1].flags = SendFlags::SIGNALED;
        initiator_side(|| {
            node.core.post_send(node.client, vqp, wrs, NOW).expect("the queue has room");
            while node.completions() == 0 {
                node.core.poll(NOW);
            }
        });
    }))
}

/// Creates a VQP and connects it to a peer whose metadata is at hand; it is destroyed outside of
/// the count.
pub(crate) fn connect() -> Result<Step> {
    let mut node = Node::new()?;
    Ok(Box::new(move || {
        let vqp = initiator_side(|| node.connect());
        node.core.vqp_destroy(node.client, vqp, NOW).expect("it is there");
    }))
}

/// The same to a peer that a meta server looks up in its own table.
pub(crate) fn connect_served() -> Result<Step> {
    let mut node = Node::new()?;
    let gid = node.serve_itself()?;
    let options = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    Ok(Box::new(move || {
        let Node { core, client, .. } = &mut node;
        let vqp = initiator_side(|| {
            let vqp = core.vqp_create(*client, VqpInit::default()).expect("there is room");
            let via = core.qconnect(*client, vqp, gid, PORT, options, 0, NOW);
            assert_eq!(via, Ok(None));
            core.poll(NOW);
            let event = core.poll_event();
            assert!(matches!(event, Some(Event::Connected { result: Ok(Via::DcLookup), .. })));
            vqp
        });
        core.vqp_destroy(*client, vqp, NOW).expect("it is there");
    }))
}

impl Node {
    fn new() -> Result<Node> {
        let rnic = elver_rnic::Config::for_address(IpAddr::from([10, 0, 0, 1]));
        let device = Bare(Rnic::new(rnic, SEED)?);
        let mut core = Core::new(device, Config::default(), SEED, NOW)?;
        let client = core.client_open(ClientLimits::default())?;
        let memory = core.device().alloc_memory(MEMORY_BYTES)?;
        let mr = core.reg_mr(client, memory, None, ACCESS)?;
        let none = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
        Ok(Node { core, client, mr, completions: [none; OUTSTANDING_MAX as usize] })
    }

    /// Makes it the meta server of itself, the only node that there is; its GID.
    fn serve_itself(&mut self) -> Result<Gid> {
        let server = self.core.serve_meta(NODES_MAX)?;
        let (gid, record) = (self.core.gid(), self.core.record());
        self.core.meta_put(gid, record)?;
        self.core.set_meta_servers(&[server], NOW);
        Ok(gid)
    }

    fn connect(&mut self) -> VqpId {
        let Node { core, client, .. } = self;
        let vqp = core.vqp_create(*client, VqpInit::default()).expect("there is room");
        let (gid, options) = (core.gid(), ConnectOptions::default());
        let via = core.qconnect(*client, vqp, gid, PORT, options, 0, NOW);
        assert_eq!(via, Ok(Some(Via::DcCached)));
        vqp
    }

    /// Takes the completions that are there; returns how many.
    fn completions(&mut self) -> usize {
        let count = self.core.poll_completions(self.client, &mut self.completions);
        for completion in &self.completions[..count] {
            assert!(completion.wc.status == WcStatus::Success, "{completion:?}");
        }
        count
    }
}
