//! DC as on mlx5: the behaviours that rdma-core's pyverbs tests of DC cover, and the rules of our
//! own that docs/wire.md gives.

use crate::common::dc::{KEY, Target, bring_up_dct, dci, dct, dest, handle, post_shared, statuses};
use crate::common::{ALL_ACCESS, Net, address};
use elver_rnic::Time;
use elver_verbs::*;

/// One host for local copies, two for packets: the same behaviour.
fn nets() -> [Net; 2] {
    [Net::new(1), Net::new(2)]
}

#[test]
fn write_read_send_and_atomics() {
    for mut net in nets() {
        let last = net.hosts.len() - 1;
        let target = dct(&mut net.hosts[last], KEY, ALL_ACCESS);
        let qp = dci(&mut net.hosts[0], 0, 0);
        let ah = handle(&mut net.hosts[0], last);
        let to = dest(ah, &target, KEY, 0);
        let data: Vec<u8> = (0..5000u32).map(|i| (i * 3) as u8).collect();
        net.hosts[0].memory.fill(0, &data);
        let sge = [net.hosts[0].sge(0, 5000)];
        let remote = net.hosts[last].remote(400_000);
        let now = net.now;

        net.hosts[0].post(now, qp, SendOp::Write(remote), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        assert_eq!(net.hosts[last].memory.get(400_000, 5000), data);

        let into = [net.hosts[0].sge(100_000, 5000)];
        net.hosts[0].post(net.now, qp, SendOp::Read(remote), &into, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        assert_eq!(net.hosts[0].memory.get(100_000, 5000), data);

        post_shared(&mut net.hosts[last], target.srq, 9, 600_000);
        net.hosts[0].post(net.now, qp, SendOp::SendWithImm(5), &sge, to);
        net.run_clean();
        let mut wcs = net.hosts[last].poll();
        if last > 0 {
            wcs.extend(net.hosts[0].poll());
        }
        let recv = wcs.iter().find(|wc| wc.wr_id == 9).unwrap();
        assert_eq!((recv.imm_data, recv.byte_len, recv.src_qp), (5, 5000, qp.0));
        assert_eq!(recv.qp_num, target.number);
        assert_eq!(net.hosts[last].memory.get(600_000, 5000), data);

        let word = [net.hosts[0].sge(64, 8)];
        let remote = net.hosts[last].remote(900_000);
        for _ in 0..20 {
            net.hosts[0].post(net.now, qp, SendOp::FetchAdd { remote, add: 2 }, &word, to);
        }
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 20]);
        assert_eq!(net.hosts[last].memory.get(900_000, 8), 40u64.to_ne_bytes());
        assert_eq!(net.hosts[0].memory.get(64, 8), 38u64.to_ne_bytes());
    }
}

#[test]
fn one_dci_reaches_many_targets_in_turn() {
    let mut net = Net::new(3);
    let targets: Vec<Target> =
        (1..3).map(|host| dct(&mut net.hosts[host], KEY, ALL_ACCESS)).collect();
    let qp = dci(&mut net.hosts[0], 0, 0);
    let ahs: Vec<Ah> = (1..3).map(|host| handle(&mut net.hosts[0], host)).collect();
    let sge = [net.hosts[0].sge(0, 3000)];
    net.hosts[0].memory.fill(0, &[0x5a; 3000]);
    for round in 0..20usize {
        let which = round % 2;
        let remote = net.hosts[1 + which].remote(round as u64 * 4000);
        let to = dest(ahs[which], &targets[which], KEY, 0);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
    }
    let mut count = 0u32;
    net.run(|_| {
        count += 1;
        usize::from(!count.is_multiple_of(13))
    });
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 20]);
    for round in 0..20usize {
        assert_eq!(net.hosts[1 + round % 2].memory.get(round * 4000, 3000), [0x5a; 3000]);
    }
    assert_eq!(net.hosts[0].nic.counters().dc_connects, 20);
}

#[test]
fn a_wrong_access_key_is_refused_and_counted() {
    for mut net in nets() {
        let last = net.hosts.len() - 1;
        let target = dct(&mut net.hosts[last], KEY, ALL_ACCESS);
        let qp = dci(&mut net.hosts[0], 0, 0);
        let ah = handle(&mut net.hosts[0], last);
        let sge = [net.hosts[0].sge(0, 8)];
        let remote = net.hosts[last].remote(0);
        let to = dest(ah, &target, KEY ^ 1, 0);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::RemAccessErr]);
        assert_eq!(net.hosts[last].nic.counters().dc_refused_key, 1);
        assert_eq!(
            net.hosts[last].nic.poll_async_event(),
            Some(AsyncEvent::DctAccessErr(target.qp))
        );
        assert_eq!(net.hosts[0].nic.query_qp(qp).unwrap().0.qp_state, QpState::Err);
        assert_eq!(net.hosts[last].nic.query_qp(target.qp).unwrap().0.qp_state, QpState::Rtr);
    }
}

/// What was refused was taken for a target that is gone, if the NAK was lost.
#[test]
fn a_refusal_that_was_lost_is_told_again() {
    for vanish in [false, true] {
        let mut net = Net::new(2);
        let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
        let qp = dci(&mut net.hosts[0], 0, 0);
        let to = dest(handle(&mut net.hosts[0], 1), &target, KEY, 0);
        let sge = [net.hosts[0].sge(0, 8)];
        let good = net.hosts[1].remote(0);
        net.hosts[0].post(net.now, qp, SendOp::Write(good), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        let (refused, status) = if vanish {
            net.hosts[1].memory.vanish();
            (SendOp::Read(good), WcStatus::RemOpErr)
        } else {
            let wrong = RemoteAddr { rkey: !good.rkey, ..good };
            (SendOp::Write(wrong), WcStatus::RemAccessErr)
        };
        net.hosts[0].post(net.now, qp, refused, &sge, to);
        net.hosts[0].post(net.now, qp, SendOp::Write(good), &sge, to);
        let mut lost = 0;
        net.run(|packet| {
            let answers = packet.flow.src.ip() == address(1);
            lost += u32::from(answers && lost < 2);
            usize::from(!answers || lost >= 2)
        });
        assert_eq!(statuses(&mut net.hosts[0]), [status, WcStatus::WrFlushErr], "{vanish}");
    }
}

/// While all answers are lost, a WRITE and a READ behind it are executed. Then the WRITE is sent alone,
/// again and again: it was acknowledged by nothing, since the READ had come last.
#[test]
fn a_write_is_acknowledged_though_a_read_was_executed_since() {
    let mut net = Net::new(2);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let dci = dci(&mut net.hosts[0], 0, 0);
    let to = dest(handle(&mut net.hosts[0], 1), &target, KEY, 0);
    let (rc, _) = net.connect(QpType::Rc, |_| {});
    for (qp, to) in [(dci, to), (rc, None)] {
        let sge = [net.hosts[0].sge(0, 8)];
        let remote = net.hosts[1].remote(0);
        // So that the target knows the initiator.
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.hosts[0].post(net.now, qp, SendOp::Read(remote), &sge, to);
        let mut lost = 0;
        net.run(|packet| {
            let answers = packet.flow.src.ip() == address(1);
            lost += u32::from(answers && lost < 3);
            usize::from(!answers || lost >= 3)
        });
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 2]);
    }
}

/// As test_dc_stream_qp_recovery: after as many errored streams as it may bear the DCI fails, and
/// comes back through RESET.
#[test]
fn errored_streams_add_up_and_the_dci_recovers() {
    for mut net in nets() {
        let last = net.hosts.len() - 1;
        let target = dct(&mut net.hosts[last], KEY, AccessFlags::LOCAL_WRITE);
        let qp = dci(&mut net.hosts[0], 2, 1);
        let ah = handle(&mut net.hosts[0], last);
        let sge = [net.hosts[0].sge(0, 8)];
        let remote = net.hosts[last].remote(0);
        for stream in 0..2 {
            assert_eq!(net.hosts[0].nic.query_qp(qp).unwrap().0.qp_state, QpState::Rts);
            let to = dest(ah, &target, KEY, stream);
            net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
            net.run_clean();
            assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::RemInvReqErr]);
        }
        assert_eq!(net.hosts[0].nic.query_qp(qp).unwrap().0.qp_state, QpState::Err);

        let now = net.now;
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        net.hosts[0].nic.modify_qp(now, qp, &reset, QpAttrMask::STATE).unwrap();
        net.hosts[0].connect(qp, QpType::Dci, address(0), 0, |_| {});
        net.hosts[last].nic.modify_qp(now, target.qp, &reset, QpAttrMask::STATE).unwrap();
        bring_up_dct(&mut net.hosts[last], target.qp, ALL_ACCESS);
        post_shared(&mut net.hosts[last], target.srq, 9, 0);
        net.hosts[0].post(net.now, qp, SendOp::Send, &sge, dest(ah, &target, KEY, 0));
        net.run_clean();
        assert!(net.hosts[last].poll().iter().any(|wc| wc.wr_id == 9));
    }
}

/// As test_dc_stream_ids_recovery: a stream that is reset after each error never stops the DCI.
#[test]
fn a_stream_that_is_reset_goes_on() {
    for mut net in nets() {
        let last = net.hosts.len() - 1;
        let target = dct(&mut net.hosts[last], KEY, AccessFlags::LOCAL_WRITE);
        let qp = dci(&mut net.hosts[0], 2, 1);
        let ah = handle(&mut net.hosts[0], last);
        let sge = [net.hosts[0].sge(0, 8)];
        let remote = net.hosts[last].remote(0);
        for _ in 0..5 {
            let to = dest(ah, &target, KEY, 3);
            net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
            net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
            net.run_clean();
            assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::RemInvReqErr, WcStatus::WrFlushErr]);
            let now = net.now;
            net.hosts[0].nic.reset_dci_stream(now, qp, 3).unwrap();
        }
        assert_eq!(net.hosts[0].nic.query_qp(qp).unwrap().0.qp_state, QpState::Rts);
        post_shared(&mut net.hosts[last], target.srq, 9, 0);
        net.hosts[0].post(net.now, qp, SendOp::Send, &sge, dest(ah, &target, KEY, 3));
        net.run_clean();
        assert!(net.hosts[last].poll().iter().any(|wc| wc.wr_id == 9));
    }
}

/// A target without a receive asks for patience, again and again: nothing ends the SEND but who posted it.
#[test]
fn the_first_wr_of_a_stream_is_given_up_and_the_others_go_on() {
    for mut net in nets() {
        let last = net.hosts.len() - 1;
        let target = dct(&mut net.hosts[last], KEY, ALL_ACCESS);
        let qp = dci(&mut net.hosts[0], 2, 1);
        let ah = handle(&mut net.hosts[0], last);
        let (sge, remote) = ([net.hosts[0].sge(0, 8)], net.hosts[last].remote(0));
        let (now, to) = (net.now, dest(ah, &target, KEY, 3));
        assert_eq!(net.hosts[0].nic.send_head(qp, 3), None);
        net.hosts[0].post(now, qp, SendOp::Send, &sge, to);
        net.hosts[0].post(now, qp, SendOp::Write(remote), &sge, to);
        let nic = &mut net.hosts[0].nic;
        let head = nic.send_head(qp, 3).unwrap();
        let other = SendHead { progress: head.progress.wrapping_add(1), ..head };
        assert!(!nic.give_up_head(now, qp, 3, other) && !nic.give_up_head(now, qp, 2, head));
        assert!(nic.give_up_head(now, qp, 3, head) && nic.send_head(qp, 3).is_none());
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
        net.hosts[0].post(now, qp, SendOp::Write(remote), &sge, dest(ah, &target, KEY, 2));
        net.run_clean();
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
    }
}

#[test]
fn one_bad_target_does_not_stop_the_other_streams() {
    let mut net = Net::new(3);
    let good = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let silent = dct(&mut net.hosts[2], KEY, ALL_ACCESS);
    let qp = dci(&mut net.hosts[0], 1, 1);
    let ahs = [handle(&mut net.hosts[0], 1), handle(&mut net.hosts[0], 2)];
    let sge = [net.hosts[0].sge(0, 8)];
    let (near, far) = (net.hosts[1].remote(0), net.hosts[2].remote(0));
    net.hosts[0].post(net.now, qp, SendOp::Write(far), &sge, dest(ahs[1], &silent, KEY, 0));
    for _ in 0..5 {
        net.hosts[0].post(net.now, qp, SendOp::Write(near), &sge, dest(ahs[0], &good, KEY, 1));
    }
    let gone = address(2);
    net.run(|packet| usize::from(packet.flow.dst.ip() != gone));
    let mut ends = statuses(&mut net.hosts[0]);
    ends.sort();
    let mut expected = vec![WcStatus::Success; 5];
    expected.push(WcStatus::RetryExcErr);
    assert_eq!(ends, expected);
    assert_eq!(net.hosts[0].nic.query_qp(qp).unwrap().0.qp_state, QpState::Rts);
}

#[test]
fn contexts_are_bounded_and_those_of_the_silent_are_reclaimed() {
    let mut net = Net::with_config(2, |config| config.max_dc_contexts = 4);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let sge = [net.hosts[0].sge(0, 8)];
    let remote = net.hosts[1].remote(0);
    let to = dest(ah, &target, KEY, 0);
    let qps: Vec<Qp> = (0..5).map(|_| dci(&mut net.hosts[0], 0, 0)).collect();
    for qp in &qps[..4] {
        net.hosts[0].post(net.now, *qp, SendOp::Write(remote), &sge, to);
    }
    net.run_clean();
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success; 4]);
    assert_eq!(net.hosts[1].nic.dct_contexts(target.qp).unwrap(), 4);

    // The fifth is told to wait, and gets in once one of the others was silent for long enough.
    net.hosts[0].post(net.now, qps[4], SendOp::Write(remote), &sge, to);
    for _ in 0..6 {
        net.run_clean();
    }
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
    assert!(net.hosts[1].nic.counters().dc_refused_room > 0);
    assert_eq!(net.hosts[1].nic.counters().dc_reclaimed, 1);
    assert_eq!(net.hosts[1].nic.dct_contexts(target.qp).unwrap(), 4);

    // The first, whose context went, reconnects by itself.
    net.hosts[0].post(net.now, qps[0], SendOp::Write(remote), &sge, to);
    for _ in 0..6 {
        net.run_clean();
    }
    assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
    assert!(net.hosts[0].nic.counters().dc_reconnects >= 1);
}

#[test]
fn an_initiator_that_crashed_mid_message_leaves_no_receive_behind() {
    // There is room for another, and there is none.
    crash_mid_message(16);
    crash_mid_message(1);
}

fn crash_mid_message(contexts: u32) {
    let mut net = Net::with_config(2, |config| config.max_dc_contexts = contexts);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let to = dest(ah, &target, KEY, 0);
    post_shared(&mut net.hosts[1], target.srq, 9, 0);
    let crashed = dci(&mut net.hosts[0], 0, 0);
    let sge = [net.hosts[0].sge(0, 5000)];
    net.hosts[0].post(net.now, crashed, SendOp::Send, &sge, to);
    net.transmit();
    let first = net.wire.pop_front().unwrap();
    net.wire.clear();
    net.deliver(&first);
    assert_eq!(net.hosts[1].nic.shared_receives(), 1);
    let now = net.now;
    net.hosts[0].nic.destroy_qp(now, crashed).unwrap();
    net.transmit();
    net.wire.clear();

    net.now = net.now.saturating_add_ns(5_000_000_000);
    let other = dci(&mut net.hosts[0], 0, 0);
    net.hosts[0].post(net.now, other, SendOp::Send, &sge, to);
    net.run_clean();
    let recv = net.hosts[1].poll();
    assert_eq!((recv[0].wr_id, recv[0].src_qp, recv[0].byte_len), (9, other.0, 5000));
}

#[test]
fn the_rules_of_mlx5_hold() {
    let mut net = Net::new(1);
    let host = &mut net.hosts[0];
    let without_srq = QpInit::new(QpType::Dct, host.pd, host.cq);
    assert!(host.nic.create_qp(without_srq).unwrap_err().to_string().contains("SRQ"));
    let target = dct(host, KEY, ALL_ACCESS);
    let rts = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
    let error = host.nic.modify_qp(Time::ZERO, target.qp, &rts, QpAttrMask::STATE).unwrap_err();
    assert!(matches!(error, VerbsError::InvalidTransition { .. }));

    let qp = dci(host, 0, 0);
    let none = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[]),
        dest: None,
    };
    let (_, error) = host.nic.post_send(Time(1), qp, &[none]).unwrap_err();
    assert_eq!(error, PostError::Destination { qp_type: QpType::Dci });
    let (_, error) = host.nic.post_send(Time(1), target.qp, &[none]).unwrap_err();
    assert!(matches!(error, PostError::Opcode { qp_type: QpType::Dct, .. }));
}

/// What a target may have executed before it forgot us is not sent again: it fails instead.
#[test]
fn nothing_is_executed_twice_across_a_reclaim() {
    let mut net = Net::with_config(2, |config| config.max_dc_contexts = 1);
    let target = dct(&mut net.hosts[1], KEY, ALL_ACCESS);
    let ah = handle(&mut net.hosts[0], 1);
    let to = dest(ah, &target, KEY, 0);
    let slow = dci(&mut net.hosts[0], 0, 0);
    let patient = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
    net.hosts[0].nic.modify_qp(Time(1), slow, &patient, QpAttrMask::STATE).unwrap();
    net.hosts[0].connect(slow, QpType::Dci, address(0), 0, |attr| attr.timeout = 20);
    let remote = net.hosts[1].remote(0);
    let sge = [net.hosts[0].sge(0, 8)];
    net.hosts[0].post(net.now, slow, SendOp::FetchAdd { remote, add: 1 }, &sge, to);
    // The request arrives, its answer does not; then the link is cut for longer than the target
    // remembers, and another initiator takes the only context.
    net.transmit();
    let request = net.wire.pop_front().unwrap();
    net.deliver(&request);
    net.transmit();
    net.wire.clear();
    net.now = net.now.saturating_add_ns(5_000_000_000);
    let other = dci(&mut net.hosts[0], 0, 0);
    let elsewhere = net.hosts[1].remote(64);
    net.hosts[0].post(net.now, other, SendOp::Write(elsewhere), &sge, to);
    for _ in 0..60 {
        net.run_clean();
    }
    let mut ends: Vec<_> = net.hosts[0].poll().iter().map(|wc| (wc.qp_num, wc.status)).collect();
    ends.sort();
    let mut expected = vec![(slow.0, WcStatus::RetryExcErr), (other.0, WcStatus::Success)];
    expected.sort();
    assert_eq!(ends, expected);
    assert_eq!(net.hosts[1].memory.get(0, 8), 1u64.to_ne_bytes());
}
