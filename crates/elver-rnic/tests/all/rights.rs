//! What a peer may do, as written down here: what the rights of the QP and of the key both permit, in the key's range
//! and not one byte beside it. It is the same within one device and between two.

use elver_verbs::*;

use crate::common::{ALL_ACCESS, Host, Net, VecMemory, address};

/// The part of some memory that is registered, and the part of that which a window opens.
const PART: (u64, u64) = (16, 96);
const WINDOW: (u64, u64) = (32, 32);
const WHOLE: usize = 128;
const IOVA: u64 = 0x5000;
/// All that a window can grant.
const REMOTE: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// Two QPs of one device or of two; the second grants these rights.
struct Ends {
    net: Net,
    near: Qp,
    far: Qp,
    last: usize,
}

impl Ends {
    fn new(hosts: usize, rights: AccessFlags) -> Ends {
        let mut net = Net::new(hosts);
        let (near, far) = if hosts == 2 {
            net.connect(QpType::Rc, |_| {})
        } else {
            let host = &mut net.hosts[0];
            let (a, b) = (host.create_qp(QpType::Rc), host.create_qp(QpType::Rc));
            host.connect(a, QpType::Rc, address(0), b.0, |_| {});
            host.connect(b, QpType::Rc, address(0), a.0, |_| {});
            (a, b)
        };
        let (now, last) = (net.now, hosts - 1);
        let attr = QpAttr { qp_access_flags: rights, ..QpAttr::default() };
        net.hosts[last].nic.modify_qp(now, far, &attr, QpAttrMask::ACCESS_FLAGS).unwrap();
        Ends { net, near, far, last }
    }

    fn there(&mut self) -> &mut Host {
        &mut self.net.hosts[self.last]
    }

    /// The key of a part of some memory, or of a window to it, with these rights; and that memory.
    fn open(&mut self, by_window: bool, rights: AccessFlags) -> (u32, VecMemory) {
        let memory = VecMemory::new(0x9000_0000, WHOLE);
        memory.fill(0, &original());
        let access = if by_window { ALL_ACCESS } else { rights };
        let pd = self.there().pd;
        let part = memory.clone();
        let mr = self.there().nic.reg_mr_part(pd, part, PART, Some(IOVA), access).unwrap();
        if !by_window {
            return (mr.rkey, memory);
        }
        let window = self.there().nic.alloc_mw(pd).unwrap();
        let (rkey, (first, length)) = (window.rkey ^ 0x55, WINDOW);
        let (mw, mr, access) = (window.mw, mr.mr, rights & REMOTE);
        let bind = BindMw { mw, rkey, mr, addr: IOVA + first, length, access };
        let (now, far) = (self.net.now, self.far);
        self.there().post(now, far, SendOp::BindMw(bind), &[], None);
        self.net.run_clean();
        assert_eq!(self.ended(self.last, far), [WcStatus::Success]);
        (rkey, memory)
    }

    /// How the WRs of a QP ended.
    fn ended(&mut self, host: usize, qp: Qp) -> Vec<WcStatus> {
        let all = self.net.hosts[host].poll();
        all.iter().filter(|wc| wc.qp_num == qp.0 && wc.wr_id == 7).map(|wc| wc.status).collect()
    }

    /// Does it with so many bytes of the first QP's host, and says how it ended.
    fn try_it(&mut self, op: SendOp, length: u32) -> WcStatus {
        let (now, sge) = (self.net.now, [self.net.hosts[0].sge(0, length)]);
        self.net.hosts[0].memory.fill(0, &[99; WHOLE]);
        self.net.hosts[0].post(now, self.near, op, &sge, None);
        self.net.run_clean();
        let [status] = self.ended(0, self.near)[..] else { panic!("one WR, one end") };
        status
    }
}

fn original() -> Vec<u8> {
    (0..WHOLE as u8).collect()
}

/// What a peer may do at an address, and the right that it needs.
fn accesses(remote: RemoteAddr) -> [(SendOp, AccessFlags); 4] {
    [
        (SendOp::Write(remote), AccessFlags::REMOTE_WRITE),
        (SendOp::Read(remote), AccessFlags::REMOTE_READ),
        (SendOp::FetchAdd { remote, add: 1 }, AccessFlags::REMOTE_ATOMIC),
        (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, AccessFlags::REMOTE_ATOMIC),
    ]
}

#[test]
fn a_peer_may_do_what_qp_and_key_both_permit() {
    for hosts in [1, 2] {
        for by_window in [false, true] {
            for nth in 0..4 {
                for (of_qp, of_key, expected) in [
                    (true, true, WcStatus::Success),
                    (false, true, WcStatus::RemInvReqErr),
                    (true, false, WcStatus::RemAccessErr),
                    (false, false, WcStatus::RemInvReqErr),
                ] {
                    let nowhere = RemoteAddr { addr: 0, rkey: 0 };
                    let (_, needs) = accesses(nowhere)[nth];
                    let rights = |has| if has { ALL_ACCESS } else { ALL_ACCESS - needs };
                    let mut ends = Ends::new(hosts, rights(of_qp));
                    let (rkey, memory) = ends.open(by_window, rights(of_key));
                    let (op, _) = accesses(RemoteAddr { addr: IOVA + WINDOW.0, rkey })[nth];
                    let case =
                        format!("{hosts} hosts, window: {by_window}, {op:?} by {of_qp}, {of_key}");
                    assert_eq!(ends.try_it(op, 8), expected, "{case}");
                    if expected != WcStatus::Success {
                        assert_eq!(memory.get(0, WHOLE), original(), "{case}");
                        assert_eq!(ends.net.hosts[0].memory.get(0, WHOLE), [99; WHOLE], "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_key_opens_its_range_and_no_byte_beside_it() {
    for hosts in [1, 2] {
        for by_window in [false, true] {
            let (first, length) = if by_window { WINDOW } else { (0, PART.1) };
            let end = first + length;
            for (at, len, is_inside) in [
                (first, length, true),
                (end - 8, 8, true),
                (first + 8, 16, true),
                (first.wrapping_sub(1), 8, false),
                (first.wrapping_sub(8), 8, false),
                (first, length + 1, false),
                (end - 7, 8, false),
                (end, 8, false),
            ] {
                for nth in 0..4 {
                    let mut ends = Ends::new(hosts, ALL_ACCESS);
                    let (rkey, memory) = ends.open(by_window, ALL_ACCESS);
                    let addr = IOVA.wrapping_add(at);
                    let (op, needs) = accesses(RemoteAddr { addr, rkey })[nth];
                    let is_atomic = needs == AccessFlags::REMOTE_ATOMIC;
                    // An atomic has a word that is aligned.
                    if is_atomic && (len != 8 || !addr.is_multiple_of(8)) {
                        continue;
                    }
                    let expected =
                        if is_inside { WcStatus::Success } else { WcStatus::RemAccessErr };
                    let case = format!("{hosts} hosts, window: {by_window}, {op:?} of {len} bytes");
                    assert_eq!(ends.try_it(op, len as u32), expected, "{case}");
                    let mut held = original();
                    let mut here = vec![99; WHOLE];
                    if is_inside {
                        let there = (PART.0 + at) as usize..(PART.0 + at + len) as usize;
                        let local = 0..len as usize;
                        match op {
                            SendOp::Write(_) => held[there].fill(99),
                            SendOp::FetchAdd { .. } => {
                                let word = &mut held[there];
                                here[local].copy_from_slice(word);
                                let sum = u64::from_ne_bytes((&*word).try_into().unwrap()) + 1;
                                word.copy_from_slice(&sum.to_ne_bytes());
                            }
                            _ => here[local].copy_from_slice(&held[there]),
                        }
                    }
                    assert_eq!(memory.get(0, WHOLE), held, "{case}");
                    assert_eq!(ends.net.hosts[0].memory.get(0, WHOLE), here, "{case}");
                }
            }
        }
    }
}

/// The same for the keys of one's own WRs.
#[test]
fn an_sge_reaches_its_part_and_no_byte_beside_it() {
    const AT: usize = 4_096;
    for hosts in [1, 2] {
        for (at, len, is_inside) in [
            (0, PART.1, true),
            (8, 16, true),
            (u64::MAX, 8, false),
            (0, PART.1 + 1, false),
            (PART.1 - 7, 8, false),
            (PART.1, 1, false),
        ] {
            for op in [SendOp::Write as fn(RemoteAddr) -> SendOp, SendOp::Read] {
                let mut ends = Ends::new(hosts, ALL_ACCESS);
                let far = ends.there().memory.clone();
                far.fill(AT, &[55; WHOLE]);
                let op = op(ends.there().remote(AT as u64));
                let near = VecMemory::new(0xa000_0000, WHOLE);
                near.fill(0, &original());
                let host = &mut ends.net.hosts[0];
                let (pd, iova) = (host.pd, Some(0x7000));
                let mr = host.nic.reg_mr_part(pd, near.clone(), PART, iova, ALL_ACCESS).unwrap();
                let (addr, length) = (mr.addr.wrapping_add(at), len as u32);
                let sge = [Sge { addr, length, lkey: mr.lkey }];
                ends.net.hosts[0].post(ends.net.now, ends.near, op, &sge, None);
                ends.net.run_clean();
                let expected = if is_inside { WcStatus::Success } else { WcStatus::LocProtErr };
                let case = format!("{hosts} hosts, {op:?} with {len} bytes at {at}");
                assert_eq!(ends.ended(0, ends.near), [expected], "{case}");
                let (mut here, mut there) = (original(), vec![55; WHOLE]);
                if is_inside {
                    let local = (PART.0 + at) as usize..(PART.0 + at + len) as usize;
                    match op {
                        SendOp::Write(_) => there[..len as usize].copy_from_slice(&here[local]),
                        _ => here[local].fill(55),
                    }
                }
                assert_eq!((near.get(0, WHOLE), far.get(AT, WHOLE)), (here, there), "{case}");
            }
        }
    }
}
