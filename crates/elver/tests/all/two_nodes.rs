//! Sessions of two nodes: look-ups, messages.

use elver::{
    ConnectOptions, Error, Gid, Payload, RecvWr, RefusalCode, SendOp, SendWr, VqpOptions, WcOpcode,
    WcStatus,
};

use crate::common::{ALL, WAIT, cluster, completion, run, session_at, succeeds, wr};

#[test]
fn a_peer_is_looked_up_once_and_read() {
    let (meta, node) = cluster(160, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let (local, remote) = (here.alloc(4096, ALL).unwrap(), there.alloc(4096, ALL).unwrap());
    remote.write(0, b"other node").unwrap();
    let vqp = here.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(meta.gid, 0).unwrap();
    succeeds(&vqp, wr(1, SendOp::Read(remote.remote(0)), &[local.sge(0, 10)]));
    let mut bytes = [0; 10];
    local.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"other node");

    assert_eq!(here.warm(&[meta.gid, Gid([9; 16])]).unwrap(), (1, 1));
    let connecting = vqp.qconnect_start(Gid([9; 16]), 0, ConnectOptions::default()).unwrap();
    let refused = connecting.wait(WAIT);
    let expected = RefusalCode::NoSuchNode;
    assert!(matches!(refused, Err(Error::Refused { code, .. }) if code == expected), "{refused:?}");
}

#[test]
fn messages_come_with_a_way_back() {
    let (meta, node) = cluster(161, |_| {});
    let (client, server) = (session_at(&node), session_at(&meta));
    let (out, into) = (client.alloc(1 << 20, ALL).unwrap(), server.alloc(1 << 20, ALL).unwrap());
    let bound = server.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    for id in 0..4 {
        let sges = [into.sge(id << 18, 1 << 18)];
        bound.post_recv(&[RecvWr { wr_id: id, sges: &sges }]).unwrap();
    }
    let vqp = client.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(meta.gid, port).unwrap();
    // One that is copied, and one that the receiver reads.
    for (id, len) in [(1, 100), (2, 200_000)] {
        let data: Vec<u8> = (0..len).map(|at: u32| ((at * 31) >> 3) as u8 ^ id as u8).collect();
        out.write(0, &data).unwrap();
        succeeds(&vqp, wr(id, SendOp::SendWithImm(id as u32), &[out.sge(0, len)]));
        let messages = bound.wait_msgs(WAIT).unwrap();
        let message = &messages[0];
        assert_eq!((messages.len(), message.wc.wr_id), (1, id - 1));
        assert_eq!((message.wc.byte_len, message.wc.imm_data), (len, id as u32));
        let mut bytes = vec![0; data.len()];
        into.read((id - 1) << 18, &mut bytes).unwrap();
        assert!(bytes == data);

        // The reply needs no connect.
        let sges = [out.sge(1 << 19, 64)];
        vqp.post_recv(&[RecvWr { wr_id: 77, sges: &sges }]).unwrap();
        into.write(0, b"reply").unwrap();
        succeeds(&message.source, wr(9, SendOp::Send, &[into.sge(0, 5)]));
        let wc = completion(&vqp);
        let got = (wc.wr_id, wc.status, wc.opcode, wc.byte_len);
        assert_eq!(got, (77, WcStatus::Success, WcOpcode::Recv, 5));
        let mut bytes = [0; 5];
        out.read(1 << 19, &mut bytes).unwrap();
        assert_eq!(&bytes, b"reply");
    }
}

/// Clients that come, send one message each and end, one after the other: nothing of them stays at the
/// server, and its VQPs to those who live are not touched.
#[test]
fn nothing_stays_of_senders_that_have_gone() {
    const SENDERS: u64 = 100;
    let (meta, node) = cluster(195, |_| {});
    let server = session_at(&meta);
    let into = server.alloc(4_096, ALL).unwrap();
    let bound = server.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    let send = || {
        let client = session_at(&node);
        let near = client.alloc(64, ALL).unwrap();
        let vqp = client.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(meta.gid, port).unwrap();
        bound.post_recv(&[RecvWr { wr_id: 1, sges: &[into.sge(0, 64)] }]).unwrap();
        succeeds(&vqp, wr(1, SendOp::Send, &[near.sge(0, 64)]));
        let source = bound.wait_msgs(WAIT).unwrap()[0].source.clone();
        (client, vqp, near, source)
    };
    let lives = send();
    for _ in 0..SENDERS {
        send();
    }
    // It hears of the ends when it looks.
    let since = std::time::Instant::now();
    loop {
        bound.qpop_msgs().unwrap();
        let status = meta.thread.status().unwrap();
        let stay = status.vqps_total;
        let of_sessions: u64 = status.sessions.iter().map(|session| u64::from(session.vqps)).sum();
        assert_eq!(stay, of_sessions, "in all as many as the sessions have");
        if stay == 2 {
            break;
        }
        assert!(Some(since.elapsed()) < WAIT, "{stay} VQPs stay");
    }
    let (client, vqp, near, source) = lives;
    vqp.post_recv(&[RecvWr { wr_id: 2, sges: &[near.sge(0, 64)] }]).unwrap();
    succeeds(&source, wr(3, SendOp::Send, &[into.sge(0, 64)]));
    let wc = completion(&vqp);
    assert_eq!((wc.wr_id, wc.opcode, wc.status), (2, WcOpcode::Recv, WcStatus::Success));
    // What the node shows of the VQP that took all the messages, and of the one back to who lives.
    let shown = meta.thread.status().unwrap().vqps;
    let counts = |vqp: u32| {
        let one = shown.iter().find(|one| one.vqp == vqp).unwrap();
        (one.sends, one.sends_done, one.receives, one.receives_done)
    };
    let all = SENDERS as u32 + 1;
    assert_eq!((counts(bound.id()), counts(source.id())), ((0, 0, all, all), (1, 1, 0, 0)));
    drop(client);
}

/// Whichever call hears that a sender is gone lets go of the VQP back to it, which would hold the session otherwise.
#[test]
fn a_session_ends_whatever_it_has_heard_of_senders() {
    let (meta, node) = cluster(247, |_| {});
    let (client, server) = (session_at(&node), session_at(&meta));
    let into = server.alloc(64, ALL).unwrap();
    let bound = server.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[into.sge(0, 64)] }]).unwrap();
    let near = client.alloc(64, ALL).unwrap();
    let vqp = client.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(meta.gid, port).unwrap();
    succeeds(&vqp, wr(1, SendOp::Send, &[near.sge(0, 64)]));
    drop(bound.wait_msgs(WAIT).unwrap());
    drop((vqp, near, client));
    let status = || meta.thread.status().unwrap();
    elver_testkit::wait_for("the VQP back to the sender to go", || {
        server.poll().unwrap();
        (status().vqps_total == 1).then_some(())
    });
    drop((bound, into, server));
    elver_testkit::wait_for("the session to go", || status().sessions.is_empty().then_some(()));
}

/// A connect that cannot begin, since WRs are outstanding, changes nothing.
#[test]
fn a_connect_that_is_refused_leaves_the_vqp_as_it_was() {
    const LEN: u32 = 1 << 20;
    let (meta, node) = cluster(248, |_| {});
    let (here, there) = (session_at(&node), session_at(&meta));
    let (local, remote) =
        (here.alloc(LEN.into(), ALL).unwrap(), there.alloc(LEN.into(), ALL).unwrap());
    let bound = there.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    // Its SEND is outstanding until it is received.
    let options = VqpOptions { confirm_sends: true, ..VqpOptions::default() };
    let vqp = here.create_vqp(options).unwrap();
    vqp.qconnect(meta.gid, port).unwrap();
    vqp.post_send(&[wr(0, SendOp::Send, &[local.sge(0, 8)])]).unwrap();
    let read = |wr_id| wr(wr_id, SendOp::Read(remote.remote(0)), &[]);
    for wr_id in 1..8 {
        let sges = [local.sge(0, LEN)];
        vqp.post_send(&[SendWr { payload: Payload::Sges(&sges), ..read(wr_id) }]).unwrap();
    }
    let refused = vqp.qconnect(meta.gid, 0);
    let expected = RefusalCode::State;
    assert!(matches!(refused, Err(Error::Refused { code, .. }) if code == expected), "{refused:?}");
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[remote.sge(0, 8)] }]).unwrap();
    for wr_id in 0..8 {
        let wc = completion(&vqp);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    succeeds(&vqp, wr(9, SendOp::Read(remote.remote(0)), &[local.sge(0, LEN)]));
    // Nothing is outstanding now.
    vqp.qconnect(meta.gid, 0).unwrap();
    succeeds(&vqp, wr(10, SendOp::Read(remote.remote(0)), &[local.sge(0, LEN)]));
}

/// A VQP that only waits for an answer hears at once that the process it has asked is gone.
#[test]
fn who_waits_for_an_answer_hears_that_the_other_end_is_gone() {
    let (meta, node) = cluster(196, |_| {});
    let (client, server) = (session_at(&node), session_at(&meta));
    let into = server.alloc(64, ALL).unwrap();
    let near = client.alloc(64, ALL).unwrap();
    let bound = server.create_vqp(VqpOptions::default()).unwrap();
    let port = bound.qbind(0).unwrap();
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[into.sge(0, 64)] }]).unwrap();
    let vqp = client.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(meta.gid, port).unwrap();
    succeeds(&vqp, wr(1, SendOp::Send, &[near.sge(0, 64)]));
    assert_eq!(bound.wait_msgs(WAIT).unwrap().len(), 1);
    drop((bound, into, server));
    let gone = vqp.wait_cq(&mut [Default::default()], WAIT).unwrap_err();
    let expected = RefusalCode::PeerGone;
    assert!(matches!(gone, Error::Refused { code, .. } if code == expected), "{gone:?}");
    // It stays readable, until the VQP is connected anew.
    assert!(matches!(vqp.failure(), Some(Error::Refused { code, .. }) if code == expected));
    assert!(vqp.failure().is_some());
    vqp.qconnect(meta.gid, 0).unwrap();
    assert!(vqp.failure().is_none());
}

/// A connect that the next one cancels says nothing of the VQP, though it is told behind that one where the peer is at hand.
#[test]
fn a_connect_that_was_cancelled_leaves_the_next_one_its_vqp() {
    let (meta, node) = cluster(238, |_| {});
    let session = session_at(&node);
    let region = session.alloc(64, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let uncached = ConnectOptions { uncached: true, ..ConnectOptions::default() };
    for _ in 0..20 {
        let cancelled = vqp.qconnect_start(meta.gid, 0, uncached).unwrap();
        vqp.qconnect(node.gid, 0).unwrap();
        // It was in time, or not.
        let _ = cancelled.wait(WAIT);
        assert!(vqp.is_connected());
        let sges = [region.sge(0, 8)];
        assert_eq!(
            run(&vqp, wr(1, SendOp::Read(region.remote(8)), &sges)).status,
            WcStatus::Success
        );
    }
}
