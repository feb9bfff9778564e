//! Nodes that run embedded, each on a thread of its own, and clients over portals.

use crate::common::{Client, PATIENCE, engine_counter, free_address, gid, wait_for};
use crate::{client, config, node};
use elver_node::{Node, NodeError, NodeThread};
use elver_portal::{Answer, Command, ConnectOptions, RefusalCode};
use elver_verbs::{
    AccessFlags, Memory, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
};

/// A meta server, and another node that is registered there.
fn pair() -> (NodeThread, String, NodeThread, String) {
    let (a, b) = (free_address(), free_address());
    let mut first = config(&a);
    first.meta.serve = true;
    let first = node(first);
    let mut second = config(&b);
    second.meta.servers = vec![first.registry_address().unwrap().to_string()];
    let second = node(second);
    for node in [&first, &second] {
        wait_for("registration", || (node.status()?.registered == 1).then_some(()));
    }
    (first, a, second, b)
}

#[test]
fn a_client_reads_what_another_nodes_client_has() {
    let (first, _, second, b) = pair();
    let mut there = client(&second);
    let target = there.alloc(4_096).unwrap();
    target.memory.write(100, b"through the node").unwrap();
    let mut here = client(&first);
    let region = here.alloc(4_096).unwrap();
    let vqp = here.create();
    here.qconnect(vqp, gid(&b), 0).unwrap();
    here.read(vqp, &region, 8, 16, RemoteAddr { addr: target.addr + 100, rkey: target.rkey });
    let wc = here.completion();
    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, 77));
    let mut bytes = [0; 16];
    region.memory.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through the node");
}

#[test]
fn a_client_reads_on_its_own_node_without_any_meta_server() {
    let address = free_address();
    let node = node(config(&address));
    let mut one = client(&node);
    let mut other = client(&node);
    let source = one.alloc(64).unwrap();
    source.memory.write(0, b"elver").unwrap();
    let region = other.alloc(64).unwrap();
    let vqp = other.create();
    other.qconnect(vqp, gid(&address), 0).unwrap();
    other.read(vqp, &region, 0, 5, RemoteAddr { addr: source.addr, rkey: source.rkey });
    assert_eq!(other.completion().status, WcStatus::Success);
    let mut bytes = [0; 5];
    region.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"elver");
}

#[test]
fn the_node_tells_how_long_reads_took() {
    let address = free_address();
    let node = node(config(&address));
    let mut one = client(&node);
    let region = one.alloc(64).unwrap();
    let vqp = one.create();
    one.qconnect(vqp, gid(&address), 0).unwrap();
    assert_eq!(node.status().unwrap().latencies, []);
    for _ in 0..1_600 {
        one.read(vqp, &region, 0, 5, RemoteAddr { addr: region.addr + 32, rkey: region.rkey });
        assert_eq!(one.completion().status, WcStatus::Success);
    }
    // One in 512 at most.
    let latencies = node.status().unwrap().latencies;
    let [reads] = &latencies[..] else { panic!("{latencies:?}") };
    assert_eq!((reads.op.as_str(), reads.samples), ("read", 3));
    assert!(0 < reads.p50_ns && reads.p50_ns <= reads.p99_ns && reads.p99_ns <= reads.max_ns);
}

#[test]
fn a_client_that_goes_leaves_nothing() {
    let address = free_address();
    let node = node(config(&address));
    let mut gone = client(&node);
    gone.alloc(1 << 20).unwrap();
    gone.alloc(64).unwrap();
    for port in 1..20 {
        let vqp = gone.create();
        gone.qbind(vqp, port).unwrap();
        gone.qconnect(vqp, gid(&address), port).unwrap();
    }
    let status = node.status().unwrap();
    assert_eq!((status.sessions.len(), status.sessions[0].mrs), (1, 2));
    assert_eq!(status.vqps_total, 19);
    assert!(status.sessions[0].bytes >= 1 << 20);
    drop(gone);
    wait_for("what it had to go", || {
        let status = node.status()?;
        let vqps = status.vqps_total + status.vqps_going;
        (status.sessions.is_empty() && vqps == 0 && status.users.is_empty()).then_some(())
    });
    assert_eq!(node.status().unwrap().core["mrs"], 0);
    // Its ports are free again.
    let mut next = client(&node);
    let vqp = next.create();
    assert_eq!(next.qbind(vqp, 7), Ok(7));
}

/// It took nothing more, so that who waited for its goodbye could not tell such a node from one that hangs.
#[test]
fn what_is_asked_behind_a_goodbye_is_refused_while_the_session_goes() {
    let mut config = config(&free_address());
    // What peers remember of a region keeps it.
    config.memory.lease_ms = 3_600_000;
    let node = node(config);
    let mut one = client(&node);
    one.alloc(4_096).unwrap();
    one.begin(&Command::Goodbye);
    for _ in 0..300 {
        let told = one.done(&Command::QueryVqp { vqp: 0 }).unwrap_err();
        assert_eq!(told.0, RefusalCode::State, "{}", told.1);
    }
    assert_eq!(node.status().unwrap().sessions.len(), 1);
}

#[test]
fn goodbye_is_answered_when_all_is_gone() {
    let node = node(config(&free_address()));
    let mut one = client(&node);
    one.alloc(300_000).unwrap();
    let small = one.alloc(64).unwrap();
    small.memory.write(0, &[7; 64]).unwrap();
    one.create();
    one.done(&Command::Goodbye).unwrap();
    assert_eq!(small.memory.read_u64(0), Ok(0));
    let status = node.status().unwrap();
    assert_eq!((status.vqps_total + status.vqps_going, status.core["mrs"]), (0, 0));
    drop(one);
    wait_for("the session to end", || node.status()?.sessions.is_empty().then_some(()));
}

#[test]
fn a_region_is_deregistered_and_its_key_refused() {
    let address = free_address();
    let node = node(config(&address));
    let mut one = client(&node);
    let region = one.alloc(64).unwrap();
    region.memory.write(0, &[7; 64]).unwrap();
    one.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap();
    // The process still maps it, and the memory is gone all the same.
    assert_eq!(region.memory.read_u64(0), Ok(0));
    assert!(node.status().unwrap().sessions[0].mrs == 0);
    let vqp = one.create();
    one.qconnect(vqp, gid(&address), 0).unwrap();
    one.read(vqp, &region, 0, 8, RemoteAddr { addr: region.addr, rkey: region.rkey });
    let wc = one.completion();
    assert_eq!((wc.status, wc.wr_id, wc.qp_num), (WcStatus::LocProtErr, 77, vqp));
    let again = one.done(&Command::DeregisterMr { lkey: region.lkey });
    assert_eq!(again.unwrap_err().0, RefusalCode::NoSuchMr);
}

#[test]
fn memory_of_the_process_is_registered() {
    let address = free_address();
    let node = node(config(&address));
    let mut one = client(&node);
    let own = elver_soft::SoftMemory::alloc(4_096).unwrap();
    own.write(10, b"of the process").unwrap();
    let access = elver_verbs::AccessFlags::REMOTE_READ;
    let command = Command::RegisterMr { addr: own.base_addr(), len: 4_096, access };
    let (_, rkey) = one
        .ask(&command, |answer| match answer {
            Answer::Mr { lkey, rkey, file_bytes: 0 } => Some((lkey, rkey)),
            _ => None,
        })
        .unwrap();
    let region = one.alloc(64).unwrap();
    let vqp = one.create();
    one.qconnect(vqp, gid(&address), 0).unwrap();
    one.read(vqp, &region, 0, 14, RemoteAddr { addr: own.base_addr() + 10, rkey });
    assert_eq!(one.completion().status, WcStatus::Success);
    let mut bytes = [0; 14];
    region.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"of the process");
}

#[test]
fn others_handles_are_refused() {
    let address = free_address();
    let node = node(config(&address));
    let (mut one, mut other) = (client(&node), client(&node));
    let (vqp, region) = (one.create(), one.alloc(64).unwrap());
    assert_eq!(other.qconnect(vqp, gid(&address), 0).unwrap_err().0, RefusalCode::NoSuchVqp);
    assert_eq!(other.done(&Command::DestroyVqp { vqp }).unwrap_err().0, RefusalCode::NoSuchVqp);
    assert_eq!(
        other.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap_err().0,
        RefusalCode::NoSuchMr
    );
    let own = other.create();
    other.qconnect(own, gid(&address), 0).unwrap();
    // Another's VQP: refused WR by WR.
    other.read(vqp, &region, 0, 8, RemoteAddr { addr: region.addr, rkey: region.rkey });
    let wc = other.completion();
    assert_eq!((wc.status, wc.wr_id, wc.qp_num), (WcStatus::LocQpOpErr, 77, vqp));
    // With another's local key.
    let remote = RemoteAddr { addr: region.addr, rkey: region.rkey };
    other.read(own, &region, 0, 8, remote);
    assert_eq!(other.completion().status, WcStatus::LocProtErr);
    // That failed its VQP: what stands behind is not done.
    let mine = other.alloc(64).unwrap();
    other.read(own, &mine, 0, 8, remote);
    assert_eq!(other.completion().status, WcStatus::WrFlushErr);
}

#[test]
fn a_session_that_breaks_a_rule_ends_alone() {
    let address = free_address();
    let node = node(config(&address));
    let mut good = client(&node);
    let bad = client(&node);
    // A welcome is nothing that a client says.
    bad.socket.send(&elver_portal::Message::Welcome(bad.welcome), None).unwrap();
    bad.ended();
    let status = node.status().unwrap();
    assert_eq!(engine_counter(&status, "violations_message"), 1);
    assert_eq!(status.sessions.len(), 1);
    let vqp = good.create();
    good.qconnect(vqp, gid(&address), 0).unwrap();
}

#[test]
fn a_client_that_takes_nothing_stops_only_itself() {
    let address = free_address();
    let node = node(config(&address));
    let (mut lazy, mut good) = (client(&node), client(&node));
    let vqp = lazy.create();
    // Until the node takes no more: its answers have no room.
    let mut asked = 0u32;
    let mut limit = std::time::Instant::now() + PATIENCE;
    let mut full = 0;
    while full < 100 {
        assert!(std::time::Instant::now() < limit);
        if lazy.end.command(1_000 + asked, &Command::QueryVqp { vqp }).unwrap() {
            (asked, full) = (asked + 1, 0);
            limit = std::time::Instant::now() + PATIENCE;
        } else {
            full += 1;
            std::thread::yield_now();
        }
        lazy.wake();
        good.create();
        if asked > 100_000 {
            panic!("it was never stopped");
        }
    }
    // What it asked for is answered when it takes the answers, in order.
    for number in 0..asked {
        lazy.answer(1_000 + number, |answer| match answer {
            Answer::Info(_) => Some(()),
            _ => None,
        })
        .unwrap();
    }
}

#[test]
fn many_clients_come_at_once_and_all_connect() {
    const CLIENTS: usize = 240;
    let (first, _, second, b) = pair();
    let sockets: Vec<_> = (0..CLIENTS).map(|_| first.connect().unwrap()).collect();
    let mut clients: Vec<Client> =
        sockets.into_iter().map(|socket| Client::over(socket).unwrap()).collect();
    let connects: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let (vqp, options) = (client.create(), ConnectOptions::default());
            client.begin(&Command::Connect { vqp, gid: gid(&b), port: 0, options })
        })
        .collect();
    for (client, request) in clients.iter_mut().zip(connects) {
        let connected = |answer: Answer<'_>| matches!(answer, Answer::Connected(_)).then_some(());
        client.answer(request, connected).unwrap();
    }
    let status = first.status().unwrap();
    assert_eq!((status.sessions.len(), status.vqps_total), (CLIENTS, CLIENTS as u64));
    drop(clients);
    wait_for("all to be gone", || (first.status()?.vqps_total == 0).then_some(()));
    assert!(second.status().is_some());
}

#[test]
fn quotas_hold_for_a_user() {
    let address = free_address();
    let mut limited = config(&address);
    limited.quota.session_vqps = 3;
    limited.quota.session_mrs = 2;
    limited.quota.sessions_total = 2;
    let node = node(limited);
    let mut one = client(&node);
    for _ in 0..3 {
        one.create();
    }
    assert_eq!(one.try_create().unwrap_err().0, RefusalCode::Limit);
    one.alloc(64).unwrap();
    one.alloc(64).unwrap();
    assert_eq!(one.alloc(64).err().unwrap().0, RefusalCode::Limit);
    let two = client(&node);
    let refused = Client::over(node.connect().unwrap()).err().unwrap();
    assert!(refused.contains("quota.sessions_total"), "{refused}");
    drop(two);
    wait_for("room for another", || Client::over(node.connect().unwrap()).ok());
}

/// All sessions of a user have so many ports together, and give them back.
#[test]
fn ports_are_so_many_for_a_user() {
    let address = free_address();
    let mut limited = config(&address);
    (limited.quota.ports, limited.quota.exempt_root) = (2, false);
    let node = node(limited);
    let (mut one, mut other) = (client(&node), client(&node));
    for (client, port) in [(&mut one, 700), (&mut other, 0)] {
        let vqp = client.create();
        client.qbind(vqp, port).unwrap();
    }
    let vqp = other.create();
    let (code, text) = other.qbind(vqp, 0).unwrap_err();
    assert!(code == RefusalCode::Limit && text.contains("`quota.ports`"), "{code:?}: {text}");
    drop(one);
    wait_for("a port", || other.qbind(vqp, 700).ok());
}

#[test]
fn sessions_prepared_at_once_are_so_many() {
    let node = node(config(&free_address()));
    let mut parent = client(&node);
    for heirs in [0, 65_537, u32::MAX] {
        let access = AccessFlags::empty();
        let prepare = Command::Prepare { heirs, vqps: 0, mr_len: 0, access };
        let (code, text) = parent.done(&prepare).unwrap_err();
        assert!(code == RefusalCode::OutOfRange && text.contains("1 to 65536"), "{text}");
    }
    parent.create();
}

#[test]
fn a_vqp_that_was_accepted_counts_for_its_user() {
    let address = free_address();
    let node = node(config(&address));
    let (mut server, mut sender) = (client(&node), client(&node));
    let bound = server.create();
    let port = server.qbind(bound, 0).unwrap();
    let region = server.alloc(64).unwrap();
    let sges = [Sge { addr: region.addr, length: 64, lkey: region.lkey }];
    server.end.receive(bound, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
    server.wake();
    let vqp = sender.create();
    sender.qconnect(vqp, gid(&address), port).unwrap();
    let (flags, payload) = (SendFlags::empty(), Payload::Inline(b"hello"));
    let wr = SendWr { wr_id: 2, op: SendOp::Send, flags, payload, dest: None };
    sender.end.send(vqp, &wr).unwrap();
    sender.wake();
    assert_eq!(server.completion().status, WcStatus::Success);
    let status = node.status().unwrap();
    assert_eq!(status.vqps_total, 3);
    let vqps: Vec<u32> = status.sessions.iter().map(|session| session.vqps).collect();
    assert_eq!((vqps, status.users[0].vqps), (vec![2, 1], 3));
    // One whose message the process has not taken counts for its session already, and so in all.
    let other = sender.create();
    sender.qconnect(other, gid(&address), port).unwrap();
    sender.end.send(other, &wr).unwrap();
    sender.wake();
    wait_for("the message to come", || {
        let status = node.status()?;
        let vqps: Vec<u32> = status.sessions.iter().map(|session| session.vqps).collect();
        let all: u32 = vqps.iter().sum();
        assert_eq!(status.vqps_total, u64::from(all));
        (vqps == [3, 2]).then_some(())
    });
    drop((server, sender));
    wait_for("the quota to be free", || node.status()?.users.is_empty().then_some(()));
}

/// The share of one node's senders is what the configuration says, and the status tells of it.
#[test]
fn senders_of_one_node_have_a_share_of_a_session() {
    const SENDERS: u64 = 4;
    let address = free_address();
    let mut limited = config(&address);
    limited.quota.session_accepts_per_peer = 1;
    let node = node(limited);
    let (mut server, mut sender) = (client(&node), client(&node));
    let bound = server.create();
    let port = server.qbind(bound, 0).unwrap();
    let region = server.alloc(64).unwrap();
    let sges = [Sge { addr: region.addr, length: 64, lkey: region.lkey }];
    for wr_id in 0..SENDERS {
        server.end.receive(bound, &RecvWr { wr_id, sges: &sges }).unwrap();
        server.wake();
        let vqp = sender.create();
        sender.qconnect(vqp, gid(&address), port).unwrap();
        let (flags, payload) = (SendFlags::empty(), Payload::Inline(b"hello"));
        let wr = SendWr { wr_id, op: SendOp::Send, flags, payload, dest: None };
        sender.end.send(vqp, &wr).unwrap();
        sender.wake();
        assert_eq!(server.completion().status, WcStatus::Success);
    }
    // Nothing was sent back over any of them: each but the last gave way to the next, and counts no more.
    wait_for("the quota of those that gave way", || {
        let status = node.status()?;
        (u64::from(status.users[0].vqps) == status.vqps_total).then_some(())
    });
    let core = node.status().unwrap().core;
    let counted = ["accepts", "accepted_evicted", "accepts_refused"].map(|name| core[name]);
    assert_eq!(counted, [SENDERS, SENDERS - 1, 0]);
}

#[test]
fn an_idle_node_sleeps_and_wakes() {
    let address = free_address();
    let node = node(config(&address));
    let mut one = client(&node);
    let sleeps = || engine_counter(&node.status().unwrap(), "sleeps");
    for _ in 0..5 {
        let before = sleeps();
        // Asking for the status wakes it, and so it must have slept to sleep again.
        wait_for("the node to sleep", || (sleeps() > before).then_some(()));
        wait_for("the session to be inactive", || {
            (!node.status()?.sessions[0].active).then_some(())
        });
        one.create();
    }
}

#[test]
fn a_node_driven_inline_serves_too() {
    let address = free_address();
    let mut node = Node::embedded(config(&address)).unwrap();
    let socket = node.connect().unwrap();
    let client = std::thread::spawn(move || {
        let mut client = Client::over(socket).unwrap();
        let vqp = client.create();
        client.qconnect(vqp, gid(&address), 0).unwrap()
    });
    while !client.is_finished() {
        if !node.poll() {
            node.rest(std::time::Duration::from_millis(1)).unwrap();
        }
    }
    client.join().unwrap();
}

/// The call waited for room that nobody but its own thread could make.
#[test]
fn a_node_that_nobody_drives_says_that_it_holds_no_more_and_takes_more_when_it_is_driven() {
    let mut node = Node::embedded(config(&free_address())).unwrap();
    let mut sockets = Vec::new();
    let full = loop {
        match node.connect() {
            Ok(socket) => sockets.push(socket),
            Err(error) => break error,
        }
        assert!(sockets.len() < 10_000);
    };
    let NodeError::System { reason, .. } = full else { panic!("{full}") };
    assert_eq!(reason.kind(), std::io::ErrorKind::WouldBlock);
    node.poll();
    assert!(sockets.len() > 100 && node.connect().is_ok());
}

#[test]
fn a_node_that_ends_ends_its_sessions_and_leaves() {
    let (first, a, second, b) = pair();
    let mut one = client(&second);
    let mut other = client(&first);
    let vqp = other.create();
    other.qconnect(vqp, gid(&b), 0).unwrap();
    second.stop().unwrap();
    one.ended();
    let vqp = one.end.command(1, &Command::Goodbye);
    assert!(vqp.is_ok());
    let mut third = client(&first);
    // One that has connected would be refused for that.
    wait_for("the node to be forgotten", || {
        let vqp = third.create();
        let connected = third.qconnect(vqp, gid(&b), 0);
        third.done(&Command::DestroyVqp { vqp }).unwrap();
        matches!(connected, Err((RefusalCode::NoSuchNode, _))).then_some(())
    });
    let own = third.create();
    third.qconnect(own, gid(&a), 0).unwrap();
}

/// A WR that failed with the connection that there was is told of before the next one: behind it, it would be taken for
/// that one's.
#[test]
fn what_failed_before_a_connect_is_told_before_it() {
    let address = free_address();
    let node = node(config(&address));
    let mut client = client(&node);
    let region = client.alloc(64).unwrap();
    let vqp = client.create();
    client.qconnect(vqp, gid(&address), 0).unwrap();
    for round in 0..40 {
        client.read(vqp, &region, 0, 8, RemoteAddr { addr: 0, rkey: 0xdead_0000 + round });
        assert_ne!(client.completion().status, WcStatus::Success);
        // The node takes this one and the connect at once, where it sleeps.
        assert!(client.put_read(vqp, &region, 0, 8, RemoteAddr { addr: 0, rkey: 1 }));
        client.qconnect(vqp, gid(&address), 0).unwrap();
        assert_eq!(client.completions.len(), 1, "round {round}");
        assert_eq!(client.completion().status, WcStatus::WrFlushErr);
    }
}
