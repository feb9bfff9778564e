//! What a WR promises of those before it, and a message of what stands in memory: seen at the moment it is told.

use crate::common::*;
use elver_core::*;
use elver_verbs::*;

const PORT: u16 = 7;
/// So long that its packets take turns with those of others.
const LONG: u32 = 200_000;

/// A VQP of node 1's by `policy`, to one that is bound at node 2.
fn pair(policy: Policy) -> (Cluster, VqpId, VqpId) {
    let mut cluster = Cluster::new(3, &config());
    let (client, server) = (cluster.vqp(1), cluster.bound(2, PORT));
    let (gid, now) = (cluster.nodes[2].core.gid(), cluster.now());
    let node = &mut cluster.nodes[1];
    let (options, token) = (ConnectOptions { policy, uncached: false }, u64::from(client.0));
    let at_once = node.core.qconnect(node.client, client, gid, PORT, options, token, now).unwrap();
    if at_once.is_none() {
        cluster.connected(1, client).unwrap();
    }
    (cluster, client, server)
}

/// A WRITE_WITH_IMM goes out as a WRITE and a message. Whoever takes the message finds all bytes in place.
#[test]
fn a_write_with_immediate_data_has_written_when_it_is_told() {
    for policy in [Policy::Shared, Policy::Lite] {
        let (mut cluster, client, server) = pair(policy);
        let near = cluster.region(1, LONG.into(), AccessFlags::LOCAL_WRITE);
        let far = cluster.region(2, LONG.into(), ALL);
        for round in 1..=3 {
            near.fill(0, &vec![round; LONG as usize]);
            cluster.recv(2, server, round.into(), &[]);
            let op = SendOp::WriteWithImm(far.remote(0), 0);
            cluster.post(1, client, &[wr(0, op, &[near.sge(0, LONG)])]);
            let told = cluster.take_one(2).wc;
            assert_eq!((told.wr_id, told.status), (round.into(), WcStatus::Success), "{policy:?}");
            assert!(far.bytes(0, LONG as usize).iter().all(|byte| *byte == round), "{policy:?}");
            cluster.take_one(1);
        }
        cluster.check();
    }
}

/// What is fenced sends what the READ before it brought, whether both are posted at once or the READ is on its way.
#[test]
fn what_is_fenced_sends_what_was_read_before_it() {
    for policy in [Policy::Shared, Policy::Lite] {
        let (mut cluster, client, server) = pair(policy);
        let near = cluster.region(1, LONG.into(), AccessFlags::LOCAL_WRITE);
        let far = cluster.region(2, 2 * u64::from(LONG), ALL);
        let room = cluster.region(2, LONG.into(), AccessFlags::LOCAL_WRITE);
        let (mut round, there) = (0, far.remote(LONG.into()));
        let (write, both) = (SendOp::Write(there), SendOp::WriteWithImm(there, 1));
        for length in [8, 200, LONG] {
            let (to, into) = ([near.sge(0, length)], [room.sge(0, length)]);
            for op in [SendOp::Send, SendOp::SendWithImm(1), write, both] {
                for at_once in [true, false] {
                    round += 1;
                    far.fill(0, &vec![round; length as usize]);
                    let is_message = !matches!(op, SendOp::Write(_));
                    if is_message {
                        cluster.recv(2, server, 0, &into);
                    }
                    let read = quiet(0, SendOp::Read(far.remote(0)), &to);
                    let fenced =
                        SendWr { flags: SendFlags::FENCE | SendFlags::SIGNALED, ..wr(1, op, &to) };
                    if at_once {
                        cluster.post(1, client, &[read, fenced]);
                    } else {
                        cluster.post(1, client, &[read]);
                        cluster.post(1, client, &[fenced]);
                    }
                    let case = format!("{policy:?}, {op:?} of {length} bytes, at once: {at_once}");
                    assert_eq!(cluster.take_one(1).wc.status, WcStatus::Success, "{case}");
                    if is_message {
                        assert_eq!(cluster.take_one(2).wc.status, WcStatus::Success, "{case}");
                    }
                    let found = match op {
                        SendOp::Send | SendOp::SendWithImm(_) => room.bytes(0, length as usize),
                        _ => far.bytes(LONG as usize as u64, length as usize),
                    };
                    assert!(found.iter().all(|byte| *byte == round), "{case}: {:?}", &found[..8]);
                }
            }
        }
        cluster.check();
    }
}

/// A message fills as much of a receive as it has bytes, and leaves the rest as it was: the node's own memory, which it
/// stood in, holds what others were sent.
#[test]
fn a_message_fills_no_more_of_a_receive_than_it_has() {
    let (mut cluster, client, server) = pair(Policy::Shared);
    let near = cluster.region(1, 4_096, AccessFlags::LOCAL_WRITE);
    let room = cluster.region(2, 8_192, AccessFlags::LOCAL_WRITE);
    near.fill(0, &[7; 4_096]);
    for length in [4_000, 1, 8, 200, 2_000] {
        for pieces in [1, 2] {
            room.fill(0, &[9; 8_192]);
            let into = [room.sge(0, 8_192 / pieces), room.sge(u64::from(8_192 / pieces), 4_096)];
            cluster.recv(2, server, 0, &into[..pieces as usize]);
            cluster.post(1, client, &[wr(0, SendOp::Send, &[near.sge(0, length)])]);
            assert_eq!(cluster.take_one(2).wc.byte_len, length);
            cluster.take_one(1);
            let (filled, rest) = (room.bytes(0, length as usize), length as usize);
            assert!(filled.iter().all(|byte| *byte == 7));
            let rest = room.bytes(length.into(), 8_192 - rest);
            assert!(rest.iter().all(|byte| *byte == 9), "{length} bytes in {pieces} pieces");
        }
    }
    cluster.check();
}
