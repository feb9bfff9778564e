//! What is changed after it was made: regions, windows of type 1, sizes of queues.

use elver_rnic::MrChange;
use elver_verbs::*;

use crate::common::{Host, Net, VecMemory, address};

/// What one WR of host 0 came to.
fn done(net: &mut Net, qp: Qp, op: SendOp, sges: &[Sge]) -> WcStatus {
    net.hosts[0].post(net.now, qp, op, sges, None);
    net.run_clean();
    let wcs = net.hosts[0].poll();
    assert_eq!(wcs.len(), 1);
    wcs[0].status
}

/// Binds a window of host 1's, and says what it came to.
fn bind(net: &mut Net, qp: Qp, bind: BindMw) -> WcStatus {
    let now = net.now;
    net.hosts[1].post(now, qp, SendOp::BindMw(bind), &[], None);
    net.run_clean();
    net.hosts[1].poll()[0].status
}

/// A connection that failed is not used again: each attempt has its own.
fn connect(net: &mut Net) -> (Qp, Qp) {
    net.connect(QpType::Rc, |_| {})
}

#[test]
fn a_window_of_type_1_serves_every_qp_of_its_domain_and_is_bound_again() {
    let mut net = Net::new(2);
    let (a, b) = connect(&mut net);
    let (c, d) = connect(&mut net);
    let (pd, mr) = (net.hosts[1].pd, net.hosts[1].mr);
    let window = net.hosts[1].nic.alloc_mw_type_1(pd).unwrap();
    let access = AccessFlags::REMOTE_WRITE;
    let first = BindMw {
        mw: window.mw,
        rkey: window.rkey ^ 1,
        mr: mr.mr,
        addr: mr.addr,
        length: 64,
        access,
    };
    assert_eq!(bind(&mut net, b, first), WcStatus::Success);
    let sge = [net.hosts[0].sge(0, 64)];
    let to = |rkey| SendOp::Write(RemoteAddr { addr: mr.addr, rkey });
    assert_eq!(done(&mut net, a, to(first.rkey), &sge), WcStatus::Success);
    assert_eq!(done(&mut net, c, to(first.rkey), &sge), WcStatus::Success, "another QP");

    // Of another region's rkey, or to more than there is: the first binding stays.
    let wrong = BindMw { rkey: first.rkey ^ 0x100, ..first };
    assert_eq!(bind(&mut net, d, wrong), WcStatus::MwBindErr);
    let (_, again) = connect(&mut net);
    let (e, f) = connect(&mut net);
    let wide = BindMw { length: mr.length + 1, rkey: window.rkey ^ 3, ..first };
    assert_eq!(bind(&mut net, again, wide), WcStatus::MwBindErr);
    assert_eq!(done(&mut net, e, to(first.rkey), &sge), WcStatus::Success);

    let second = BindMw { rkey: window.rkey ^ 2, ..first };
    assert_eq!(bind(&mut net, f, second), WcStatus::Success);
    assert_eq!(done(&mut net, e, to(first.rkey), &sge), WcStatus::RemAccessErr, "its key is old");
    let (g, h) = connect(&mut net);
    assert_eq!(done(&mut net, g, to(second.rkey), &sge), WcStatus::Success);
    assert!(matches!(net.hosts[1].nic.dereg_mr(mr.mr), Err(VerbsError::InUse { users: 1, .. })));

    let none = BindMw { length: 0, rkey: window.rkey ^ 4, mr: Mr(0), ..first };
    assert_eq!(bind(&mut net, h, none), WcStatus::Success);
    assert_eq!(done(&mut net, g, to(second.rkey), &sge), WcStatus::RemAccessErr);
    net.hosts[1].nic.dereg_mr(mr.mr).unwrap();
    net.hosts[1].nic.dealloc_mw(window.mw).unwrap();
}

/// Who may send to a window's owner could else close it (IBTA vol. 1, 10.6.7.2.5).
#[test]
fn no_peer_invalidates_a_window_of_type_1() {
    let mut net = Net::new(2);
    let (a, b) = connect(&mut net);
    let (pd, mr) = (net.hosts[1].pd, net.hosts[1].mr);
    let window = net.hosts[1].nic.alloc_mw_type_1(pd).unwrap();
    let access = AccessFlags::REMOTE_READ;
    let to =
        BindMw { mw: window.mw, rkey: window.rkey, mr: mr.mr, addr: mr.addr, length: 64, access };
    assert_eq!(bind(&mut net, b, to), WcStatus::Success);
    let (now, buffer) = (net.now, [net.hosts[1].sge(0, 16)]);
    let receive = [RecvWr { wr_id: 2, sges: &buffer }];
    net.hosts[1].nic.post_recv(now, b, &receive).unwrap();
    assert_ne!(done(&mut net, a, SendOp::SendWithInv(window.rkey), &[]), WcStatus::Success);
    let (c, _) = connect(&mut net);
    let sge = [net.hosts[0].sge(0, 64)];
    let read = SendOp::Read(RemoteAddr { addr: mr.addr, rkey: window.rkey });
    assert_eq!(done(&mut net, c, read, &sge), WcStatus::Success);
}

#[test]
fn a_region_changes_and_keeps_its_keys() {
    let mut net = Net::new(2);
    let mr = net.hosts[1].mr;
    let (a, _) = connect(&mut net);
    let sge = [net.hosts[0].sge(0, 16)];
    net.hosts[0].memory.fill(0, &[7; 16]);
    let to = |addr| SendOp::Write(RemoteAddr { addr, rkey: mr.rkey });
    let change = |host: &mut Host, change| host.nic.rereg_mr(mr.mr, change);
    let same = || MrChange { memory: None, pd: None, access: None };

    let elsewhere = VecMemory::new(0x99_0000, 64);
    let moved = MrChange { memory: Some((elsewhere.clone(), 0x5000)), ..same() };
    change(&mut net.hosts[1], moved).unwrap();
    assert_eq!(done(&mut net, a, to(0x5000), &sge), WcStatus::Success);
    assert_eq!(elsewhere.get(0, 16), [7; 16]);

    let narrow = MrChange { access: Some(AccessFlags::LOCAL_WRITE), ..same() };
    change(&mut net.hosts[1], narrow).unwrap();
    assert_eq!(done(&mut net, a, to(0x5000), &sge), WcStatus::RemAccessErr);
    let wide = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    change(&mut net.hosts[1], MrChange { access: Some(wide), ..same() }).unwrap();

    // Another PD keeps it from the QPs of the first, and the first can go when nothing is left.
    let other = net.hosts[1].nic.alloc_pd().unwrap();
    change(&mut net.hosts[1], MrChange { pd: Some(other), ..same() }).unwrap();
    let (c, _) = connect(&mut net);
    assert_eq!(done(&mut net, c, to(0x5000), &sge), WcStatus::RemAccessErr);
    assert!(net.hosts[1].nic.dealloc_pd(other).is_err());
    net.hosts[1].nic.dereg_mr(mr.mr).unwrap();
    net.hosts[1].nic.dealloc_pd(other).unwrap();
}

#[test]
fn a_region_that_cannot_change_is_as_it_was() {
    let mut net = Net::new(2);
    let (mr, pd) = (net.hosts[1].mr, net.hosts[1].pd);
    let (a, b) = connect(&mut net);
    let nic = &mut net.hosts[1].nic;
    let same = || MrChange { memory: None, pd: None, access: None };
    for change in [
        MrChange { pd: Some(Pd(0)), ..same() },
        MrChange { access: Some(AccessFlags::REMOTE_WRITE), ..same() },
        MrChange { memory: Some((VecMemory::new(0, 64), u64::MAX - 8)), ..same() },
    ] {
        assert!(nic.rereg_mr(mr.mr, change).is_err());
    }
    assert!(nic.rereg_mr(Mr(0), same()).is_err());
    let window = nic.alloc_mw(pd).unwrap();
    let access = AccessFlags::REMOTE_READ;
    let to =
        BindMw { mw: window.mw, rkey: window.rkey, mr: mr.mr, addr: mr.addr, length: 8, access };
    assert_eq!(bind(&mut net, b, to), WcStatus::Success);
    let refused = net.hosts[1].nic.rereg_mr(mr.mr, same());
    assert!(matches!(refused, Err(VerbsError::InUse { users: 1, .. })));
    let sge = [net.hosts[0].sge(0, 16)];
    let write = SendOp::Write(RemoteAddr { addr: mr.addr, rkey: mr.rkey });
    assert_eq!(done(&mut net, a, write, &sge), WcStatus::Success);
}

#[test]
fn a_cq_is_never_made_smaller_than_what_waits_in_it() {
    let mut net = Net::new(2);
    let (a, _) = connect(&mut net);
    let (mr, cq) = (net.hosts[1].mr, net.hosts[0].cq);
    let sge = [net.hosts[0].sge(0, 16)];
    let write = SendOp::Write(RemoteAddr { addr: mr.addr, rkey: mr.rkey });
    for _ in 0..3 {
        net.hosts[0].post(net.now, a, write, &sge, None);
    }
    net.run_clean();
    let nic = &mut net.hosts[0].nic;
    for wrong in [0, 2, u32::MAX] {
        assert!(matches!(nic.resize_cq(cq, wrong), Err(VerbsError::OutOfRange { .. })), "{wrong}");
    }
    nic.resize_cq(cq, 3).unwrap();
    assert_eq!(net.hosts[0].poll().len(), 3);
    assert_eq!(done(&mut net, a, write, &sge), WcStatus::Success);
}

#[test]
fn an_srq_holds_as_many_as_it_was_changed_to() {
    let mut net = Net::new(1);
    let (pd, sge) = (net.hosts[0].pd, [net.hosts[0].sge(0, 16)]);
    let nic = &mut net.hosts[0].nic;
    let srq = nic.create_srq(SrqInit { pd, max_wr: 1, max_sge: 1 }).unwrap();
    let wr = [RecvWr { wr_id: 1, sges: &sge }];
    let now = net.now;
    nic.post_srq_recv(now, srq, &wr).unwrap();
    assert!(nic.post_srq_recv(now, srq, &wr).is_err());
    nic.resize_srq(srq, 2).unwrap();
    nic.post_srq_recv(now, srq, &wr).unwrap();
    for wrong in [0, 1, u32::MAX] {
        assert!(nic.resize_srq(srq, wrong).is_err(), "{wrong}");
    }
    assert_eq!(nic.query_srq(srq).unwrap().max_wr, 2);
}

/// Its owner is told when fewer receives are left than he said, once (IBTA vol. 1, 11.2.3.4): not when as many are.
#[test]
fn an_srq_tells_when_fewer_are_left_than_its_limit() {
    let mut net = Net::new(2);
    let host = &mut net.hosts[1];
    let (pd, cq, sge) = (host.pd, host.cq, [host.sge(0, 16)]);
    let srq = host.nic.create_srq(SrqInit { pd, max_wr: 4, max_sge: 1 }).unwrap();
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, pd, cq) };
    let to = host.nic.create_qp(init).unwrap();
    let from = net.hosts[0].create_qp(QpType::Rc);
    net.hosts[0].connect(from, QpType::Rc, address(1), to.0, |_| {});
    net.hosts[1].connect(to, QpType::Rc, address(0), from.0, |_| {});
    let (now, wr) = (net.now, [RecvWr { wr_id: 1, sges: &sge }]);
    for _ in 0..4 {
        net.hosts[1].nic.post_srq_recv(now, srq, &wr).unwrap();
    }
    net.hosts[1].nic.modify_srq(srq, 3).unwrap();
    while net.hosts[1].nic.poll_async_event().is_some() {}
    for told in [None, Some(AsyncEvent::SrqLimitReached(srq)), None] {
        assert_eq!(done(&mut net, from, SendOp::Send, &[]), WcStatus::Success);
        let events: Vec<_> = std::iter::from_fn(|| net.hosts[1].nic.poll_async_event()).collect();
        let limit = |event: &&AsyncEvent| matches!(event, AsyncEvent::SrqLimitReached(_));
        assert_eq!(events.iter().find(limit).copied(), told, "{events:?}");
    }
}

/// Who posts all or none learns of the first that would be refused, and nothing was posted.
#[test]
fn what_would_be_refused_is_told_before() {
    let mut net = Net::new(2);
    let (a, _) = connect(&mut net);
    let mr = net.hosts[1].mr;
    let sge = [net.hosts[0].sge(0, 16)];
    let write = SendOp::Write(RemoteAddr { addr: mr.addr, rkey: mr.rkey });
    let wr = SendWr {
        wr_id: 1,
        op: write,
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sge),
        dest: None,
    };
    let nic = &net.hosts[0].nic;
    let room = nic.query_qp(a).unwrap().1.cap.max_send_wr as usize;
    nic.check_sends(a, std::iter::repeat_n(wr, room)).unwrap();
    let full = nic.check_sends(a, std::iter::repeat_n(wr, room + 1));
    assert!(matches!(full, Err((index, PostError::QueueFull { .. })) if index == room));
    let dest = Some(Dest::Ud { ah: Ah(1), remote_qpn: 2, remote_qkey: 3 });
    let second = nic.check_sends(a, [wr, SendWr { dest, ..wr }].into_iter());
    assert!(matches!(second, Err((1, PostError::Destination { .. }))));
    assert!(nic.check_sends(Qp(0), [wr].into_iter()).is_err());
    net.run_clean();
    assert!(net.hosts[0].poll().is_empty());
}
