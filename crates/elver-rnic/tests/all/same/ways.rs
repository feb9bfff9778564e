//! One plan, run within a device or between two, as lines that must be the same.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;

use elver_rnic::{Config, Time};
use elver_verbs::*;

use super::plan::{
    Action, CUT_OFF, DC_KEY, Key, Own, PLACES, Plan, QKEY, RECEIVES, REGION, Receive, SLOT, Send,
    Transport,
};
use crate::common::{Host, Net, VecMemory, address};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Local,
    /// Within a device, whose steps are so short that what is longer than a packet takes several, or goes in packets that
    /// never leave it.
    Steps,
    Packets,
}

/// The initiator, or the target.
struct Side {
    host: usize,
    pd: Pd,
    cq: Cq,
    memory: VecMemory,
    mr: MrInfo,
    foreign: MrInfo,
    read_only: MrInfo,
    srq: Option<Srq>,
    qp: Qp,
    qp_num: u32,
}

struct World<'a> {
    plan: &'a Plan,
    net: Net,
    sides: [Side; 2],
    ah: Ah,
    window: MwInfo,
    window_rkey: u32,
    sent: Vec<Send>,
    lines: Vec<String>,
    seen: Seen,
}

const INITIATOR: usize = 0;
const TARGET: usize = 1;

/// What a region holds at first.
fn pattern(side: usize, at: u64) -> u8 {
    (at * 7 + at / 256 + side as u64 * 101) as u8
}

/// How a WR ended, by its transport.
pub type Seen = BTreeSet<(Transport, SendOpcode, WcStatus)>;

/// Runs a plan; a line for each thing that can be seen, in order, and how WRs ended.
pub fn run(way: Way, plan: &Plan) -> (Vec<String>, Seen) {
    let mut world = World::new(way, plan);
    for action in &plan.actions {
        world.act(action);
        world.net.run_clean();
        world.look(&format!("{action:?}"));
    }
    // What is left shows when it is flushed.
    for side in [INITIATOR, TARGET] {
        world.set_state(side, QpState::Err);
        world.net.run_clean();
        world.look("end");
    }
    (world.lines, world.seen)
}

impl World<'_> {
    fn new(way: Way, plan: &Plan) -> World<'_> {
        let mut net = Net::new(0);
        net.hosts = match way {
            Way::Local => vec![host(&[address(0), address(1)], None)],
            Way::Steps => vec![host(&[address(0), address(1)], Some(plan.mtu.bytes()))],
            Way::Packets => vec![host(&[address(0)], None), host(&[address(1)], None)],
        };
        let (types, hosts) = match way {
            Way::Local | Way::Steps => (types(plan.transport), [0, 0]),
            Way::Packets => (types(plan.transport), [0, 1]),
        };
        let sides = [INITIATOR, TARGET]
            .map(|side| make_side(&mut net, plan, side, hosts[side], types[side]));
        let (pd, at) = (sides[TARGET].pd, hosts[TARGET]);
        let window = net.hosts[at].nic.alloc_mw(pd).unwrap();
        let av = AddressVector { dgid: Gid::from(address(1)), ..AddressVector::default() };
        let ah = net.hosts[0].nic.create_ah(sides[INITIATOR].pd, av).unwrap();
        let lines = Vec::new();
        let mut world = World {
            plan,
            net,
            sides,
            ah,
            window,
            window_rkey: window.rkey,
            sent: Vec::new(),
            lines,
            seen: Seen::new(),
        };
        world.connect(way);
        world
    }

    fn connect(&mut self, way: Way) {
        let types = types(self.plan.transport);
        for side in [TARGET, INITIATOR] {
            let peer = self.sides[1 - side].qp_num;
            let sgid_index = if way != Way::Packets { side as u8 } else { 0 };
            let plan = self.plan;
            let Side { host, qp, .. } = self.sides[side];
            let nic = &mut self.net.hosts[host].nic;
            let mut attr = QpAttr {
                qp_access_flags: plan.rights,
                qkey: QKEY,
                ah_attr: AddressVector {
                    dgid: Gid::from(address(1 - side)),
                    sgid_index,
                    ..AddressVector::default()
                },
                path_mtu: plan.mtu,
                dest_qp_num: peer,
                max_rd_atomic: plan.max_rd_atomic,
                max_dest_rd_atomic: plan.max_dest_rd_atomic,
                min_rnr_timer: 20,
                timeout: 10,
                retry_cnt: 1,
                rnr_retry: plan.rnr_retry,
                ..QpAttr::default()
            };
            let mut from = QpState::Reset;
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let Some(row) = qp_state::transition(types[side], from, state) else { break };
                if side == TARGET && plan.silent && state == QpState::Rts {
                    break;
                }
                attr.qp_state = state;
                let access = row.optional & QpAttrMask::ACCESS_FLAGS;
                nic.modify_qp(Time::ZERO, qp, &attr, QpAttrMask::STATE | row.required | access)
                    .unwrap();
                from = state;
            }
            self.sides[side].qp_num = nic.qp_num(qp).unwrap();
        }
        // A DCT has its number from RTR on; it was first.
    }

    fn act(&mut self, action: &Action) {
        let host = self.sides[TARGET].host;
        match action {
            Action::Post(sends) => {
                for send in sends {
                    self.post(send);
                }
            }
            Action::Receive(receives) => {
                for receive in receives {
                    self.receive(receive);
                }
            }
            Action::Deregister => {
                let mr = self.sides[TARGET].mr.mr;
                let gone = self.net.hosts[host].nic.dereg_mr(mr).is_ok();
                self.lines.push(format!("deregistered: {gone}"));
            }
            Action::Vanish => self.sides[TARGET].memory.vanish(),
            Action::VanishOwn => self.sides[INITIATOR].memory.vanish(),
            Action::Bind => {
                self.window_rkey ^= 0x55;
                let mr = self.sides[TARGET].mr;
                let bind = BindMw {
                    mw: self.window.mw,
                    rkey: self.window_rkey,
                    mr: mr.mr,
                    addr: mr.addr,
                    length: REGION / 2,
                    access: self.plan.window_rights,
                };
                self.post_own(SendOp::BindMw(bind));
            }
            Action::Invalidate => self.post_own(SendOp::LocalInv(self.window_rkey)),
            Action::Target(state) => self.set_state(TARGET, *state),
            Action::Initiator(state) => self.set_state(INITIATOR, *state),
            Action::Limit(limit) => {
                if let Some(srq) = self.sides[TARGET].srq {
                    self.net.hosts[host].nic.modify_srq(srq, *limit).unwrap();
                }
            }
        }
    }

    /// What may be refused says so the same way.
    fn set_state(&mut self, side: usize, state: QpState) {
        let Side { host, qp, .. } = self.sides[side];
        let attr = QpAttr { qp_state: state, ..QpAttr::default() };
        let now = self.net.now;
        let set = self.net.hosts[host].nic.modify_qp(now, qp, &attr, QpAttrMask::STATE);
        self.lines.push(format!("side {side} to {state:?}: {}", set.is_ok()));
    }

    fn post_own(&mut self, op: SendOp) {
        let Side { host, qp, .. } = self.sides[TARGET];
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 0, op, flags, payload: Payload::Sges(&[]), dest: None };
        let posted = self.net.hosts[host].nic.post_send(self.net.now, qp, &[wr]).is_ok();
        self.lines.push(format!("posted at the target: {posted}"));
    }

    fn post(&mut self, send: &Send) {
        let target = &self.sides[TARGET];
        let (addr, mut rkey) = (target.mr.addr.wrapping_add(send.va), target.mr.rkey);
        match send.key {
            Key::Good => {}
            Key::Foreign => rkey = target.foreign.rkey,
            Key::Forged => rkey ^= 1,
            Key::Nothing => rkey = 0x00ab_cdef,
            Key::Window => rkey = self.window_rkey,
        }
        let remote = RemoteAddr { addr, rkey };
        let [compare, word] = send.words;
        let op = match send.opcode {
            SendOpcode::Send => SendOp::Send,
            SendOpcode::SendWithImm => SendOp::SendWithImm(word as u32),
            SendOpcode::SendWithInv => SendOp::SendWithInv(rkey),
            SendOpcode::Write => SendOp::Write(remote),
            SendOpcode::WriteWithImm => SendOp::WriteWithImm(remote, word as u32),
            SendOpcode::Read => SendOp::Read(remote),
            SendOpcode::CompareSwap => SendOp::CompareSwap { remote, compare, swap: word },
            SendOpcode::FetchAdd => SendOp::FetchAdd { remote, add: word },
            other => unreachable!("no plan has {other:?}"),
        };
        let dest = match self.plan.transport {
            Transport::Rc | Transport::Uc => None,
            Transport::Xrc => target.srq.map(|srq| Dest::Xrc { remote_srqn: srq.0 }),
            Transport::Ud => Some(Dest::Ud {
                ah: self.ah,
                remote_qpn: target.qp_num,
                remote_qkey: if send.admitted { QKEY } else { QKEY + 1 },
            }),
            Transport::Dc => Some(Dest::Dc {
                ah: self.ah,
                remote_dctn: target.qp_num,
                dc_access_key: if send.admitted { DC_KEY } else { DC_KEY + 1 },
                // One stream: several have no order among each other.
                stream_id: u16::from(self.plan.streams) / 2,
            }),
        };
        let own = &self.sides[INITIATOR];
        let at = place(send) * SLOT;
        let mr = if send.own == Own::ReadOnly { own.read_only } else { own.mr };
        let mut sges = cut(&mr, at, send.len, send.sges);
        match send.own {
            Own::Foreign => sges[0].lkey = own.foreign.lkey,
            Own::Outside => sges[0].addr = own.mr.addr - 1,
            _ => {}
        }
        let bytes = vec![send.number as u8; send.len as usize];
        let payload =
            if send.own == Own::Inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
        let wr = SendWr { wr_id: send.number, op, flags: send.flags, payload, dest };
        let posted = self.net.hosts[own.host].nic.post_send(self.net.now, own.qp, &[wr]).is_ok();
        self.sent.push(*send);
        self.lines.push(format!("posted {}: {posted}", send.number));
    }

    fn receive(&mut self, receive: &Receive) {
        let side = &self.sides[TARGET];
        let at = RECEIVES + receive.number % 16 * SLOT;
        let mut sges = cut(&side.mr, at, receive.len, receive.sges);
        if receive.bad
            && let Some(last) = sges.last_mut()
        {
            last.lkey = side.foreign.lkey;
        }
        let wr = RecvWr { wr_id: 1_000 + receive.number, sges: &sges };
        let nic = &mut self.net.hosts[side.host].nic;
        let posted = match side.srq {
            Some(srq) => nic.post_srq_recv(self.net.now, srq, &[wr]),
            None => nic.post_recv(self.net.now, side.qp, &[wr]),
        };
        self.lines.push(format!("receive {}: {}", receive.number, posted.is_ok()));
    }

    /// Writes down what can be seen.
    fn look(&mut self, after: &str) {
        self.lines.push(format!("-- {after}"));
        for side in [INITIATOR, TARGET] {
            self.completions(side);
        }
        self.events();
        for (number, side) in self.sides.iter().enumerate() {
            let (attr, _) = self.net.hosts[side.host].nic.query_qp(side.qp).unwrap();
            self.lines.push(format!("side {number} is in {:?}", attr.qp_state));
            let shared = side.srq.map(|_| self.net.hosts[side.host].nic.shared_receives());
            self.lines.push(format!("side {number} has {shared:?} receives"));
            let compared = if number == INITIATOR { 0..PLACES * SLOT } else { 0..CUT_OFF };
            self.lines
                .push(format!("side {number} holds {}", changes(number, &side.memory, compared)));
        }
        // Of a message that comes in several packets each may be dropped, for reasons of its own.
        let dropped = self.net.hosts.iter().map(|host| {
            let counters = host.nic.counters();
            counters.drop_no_receive + counters.drop_length + counters.drop_unreliable
        });
        let dropped = dropped.sum::<u64>() > 0;
        let refused: u64 = self.net.hosts.iter().map(|host| host.nic.counters().drop_qkey).sum();
        self.lines.push(format!("dropped: {dropped}, refused: {refused}"));
    }

    fn completions(&mut self, side: usize) {
        let Side { host, cq, qp_num, .. } = self.sides[side];
        let peer = self.sides[1 - side].qp_num;
        let mut wcs = [Wc::default(); 64];
        let count = self.net.hosts[host].nic.poll_cq(cq, &mut wcs).unwrap();
        for wc in &wcs[..count] {
            // Numbers and keys are each device's own.
            let qp = if wc.qp_num == qp_num { "own" } else { "other" };
            let source = match wc.src_qp {
                0 => "none",
                number if number == peer => "peer",
                _ => "other",
            };
            let imm = if wc.flags.contains(WcFlags::WITH_INV) { 0 } else { wc.imm_data };
            self.lines.push(format!(
                "side {side}: {} {:?} {:?} {:?} {} bytes {imm:#x} {qp} from {source}",
                wc.wr_id, wc.status, wc.opcode, wc.flags, wc.byte_len
            ));
            let sent = self.sent.iter().find(|send| send.number == wc.wr_id);
            let opcode = match wc.opcode {
                WcOpcode::BindMw => Some(SendOpcode::BindMw),
                WcOpcode::LocalInv => Some(SendOpcode::LocalInv),
                _ => sent.map(|send| send.opcode),
            };
            self.seen.extend(opcode.map(|opcode| (self.plan.transport, opcode, wc.status)));
            if wc.status == WcStatus::Success {
                self.moved(side, wc);
            }
        }
        assert!(count < wcs.len());
    }

    /// What a completion vouches for, of all that is not compared otherwise.
    fn moved(&mut self, side: usize, wc: &Wc) {
        let of = |fits: &dyn Fn(&Send) -> bool| self.sent.iter().find(|send| fits(send)).copied();
        let at = match (side, wc.opcode) {
            (TARGET, WcOpcode::Recv) => RECEIVES + (wc.wr_id - 1_000) % 16 * SLOT,
            (TARGET, WcOpcode::RecvRdmaWithImm) => {
                let written = |send: &Send| {
                    send.opcode == SendOpcode::WriteWithImm && send.words[1] as u32 == wc.imm_data
                };
                of(&written).unwrap().va
            }
            (INITIATOR, WcOpcode::RdmaRead | WcOpcode::FetchAdd | WcOpcode::CompSwap) => {
                place(&of(&|send| send.number == wc.wr_id).unwrap()) * SLOT
            }
            _ => return,
        };
        let memory = &self.sides[side].memory;
        let bytes = if wc.byte_len == 0 { 0..0 } else { at..at + u64::from(wc.byte_len) };
        self.lines.push(format!("  of {}", changes(side, memory, bytes)));
    }

    fn events(&mut self) {
        let mut told: [Vec<String>; 2] = Default::default();
        for number in 0..self.net.hosts.len() {
            while let Some(event) = self.net.hosts[number].nic.poll_async_event() {
                let of = |qp: Qp| {
                    self.sides.iter().position(|side| side.host == number && side.qp == qp).unwrap()
                };
                let (side, name) = match event {
                    AsyncEvent::QpFatal(qp) => (of(qp), "fatal"),
                    AsyncEvent::QpReqErr(qp) => (of(qp), "request"),
                    AsyncEvent::QpAccessErr(qp) => (of(qp), "access"),
                    AsyncEvent::CommEst(qp) => (of(qp), "established"),
                    AsyncEvent::SqDrained(qp) => (of(qp), "drained"),
                    AsyncEvent::QpLastWqeReached(qp) => (of(qp), "last WQE"),
                    AsyncEvent::SrqLimitReached(_) => (TARGET, "limit"),
                    AsyncEvent::DctAccessErr(qp) => (of(qp), "DC access"),
                    other => panic!("no plan leads to {other:?}"),
                };
                // Each packet of a session with a wrong key is refused, and told.
                if name != "DC access" || told[side].last().is_none_or(|last| last != name) {
                    told[side].push(name.into());
                }
            }
        }
        self.lines.push(format!("events: {told:?}"));
    }
}

fn types(transport: Transport) -> [QpType; 2] {
    match transport {
        Transport::Rc => [QpType::Rc; 2],
        Transport::Uc => [QpType::Uc; 2],
        Transport::Ud => [QpType::Ud; 2],
        Transport::Dc => [QpType::Dci, QpType::Dct],
        Transport::Xrc => [QpType::XrcSend, QpType::XrcRecv],
    }
}

fn host(addresses: &[IpAddr], step: Option<u32>) -> Host {
    let mut config = Config { addresses: addresses.to_vec(), ..Config::for_address(addresses[0]) };
    config.local_step_bytes = step.unwrap_or(config.local_step_bytes);
    Host::new(config, 7)
}

fn make_side(net: &mut Net, plan: &Plan, side: usize, host: usize, qp_type: QpType) -> Side {
    let nic = &mut net.hosts[host].nic;
    let pd = nic.alloc_pd().unwrap();
    let other = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(CqInit { cqe: 256 }).unwrap();
    let memory = VecMemory::new(0x1000_0000 * (side as u64 + 1), REGION as usize);
    memory.fill(0, &(0..REGION).map(|at| pattern(side, at)).collect::<Vec<u8>>());
    let local = AccessFlags::LOCAL_WRITE;
    let rights = if side == TARGET { plan.region_rights } else { local };
    let mr = nic.reg_mr(pd, memory.clone(), None, rights).unwrap();
    let all = local | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let foreign = nic.reg_mr(other, memory.clone(), None, all).unwrap();
    let read_only = nic.reg_mr(pd, memory.clone(), None, AccessFlags::empty()).unwrap();
    let shares = plan.srq && side == TARGET;
    let domain = (qp_type == QpType::XrcRecv).then(|| nic.open_xrcd().unwrap());
    let srq = shares.then(|| {
        let init = SrqInit { pd, max_wr: 64, max_sge: 4 };
        match domain {
            Some(domain) => nic.create_xrc_srq(init, domain, cq).unwrap(),
            None => nic.create_srq(init).unwrap(),
        }
    });
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256, ..QpCap::default() };
    let init = QpInit {
        cap,
        srq,
        sq_sig_all: plan.signal_all,
        dc_access_key: DC_KEY,
        dci: DciInit { log_num_concurrent: plan.streams, log_num_errored: plan.streams },
        ..QpInit::new(qp_type, pd, cq)
    };
    let init = match qp_type {
        QpType::Dci => init,
        _ => QpInit { dci: DciInit::default(), ..init },
    };
    let qp = match domain {
        Some(domain) => nic.create_xrc_target(domain).unwrap(),
        None => nic.create_qp(init).unwrap(),
    };
    let qp_num = nic.qp_num(qp).unwrap_or(0);
    Side { host, pd, cq, memory, mr, foreign, read_only, srq, qp, qp_num }
}

/// `len` bytes from `at` on, as so many SGEs.
fn cut(mr: &MrInfo, at: u64, len: u32, sges: u32) -> Vec<Sge> {
    let piece = len / sges;
    let sge = |index: u32| {
        let skip = index * piece;
        let length = if index + 1 == sges { len - skip } else { piece };
        Sge { addr: mr.addr + at + u64::from(skip), length, lkey: mr.lkey }
    };
    (0..sges).map(sge).collect()
}

/// Where a WR has its own bytes: what is sent apart from what comes back, since that may be a part
/// of an answer when the WR fails.
fn place(send: &Send) -> u64 {
    let fetches =
        matches!(send.opcode, SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd);
    send.number % PLACES + if fetches { PLACES } else { 0 }
}

/// What has become of a region's bytes, as a hash.
fn changes(side: usize, memory: &VecMemory, range: Range<u64>) -> String {
    let mut hasher = DefaultHasher::new();
    let bytes = memory.get(range.start as usize, (range.end - range.start) as usize);
    let mut count = 0;
    for (at, byte) in range.zip(bytes) {
        if byte != pattern(side, at) {
            (at, byte).hash(&mut hasher);
            count += 1;
        }
    }
    format!("{count} changed bytes, {:x}", hasher.finish())
}
