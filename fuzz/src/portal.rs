//! A client that writes anything, at any time, into the memory that it shares with its node: the
//! node's end may refuse, and must do nothing else.
use std::fs::File;
use std::os::unix::fs::FileExt;

use elver_portal::{
    BATCH_MAX, ClientEnd, Command, Completion, INLINE_MAX, Layout, Message, NodeEnd, Request,
    SGES_MAX, Scratch, VqpOptions, memfd,
};
use elver_verbs::{Gid, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Wc};

const LAYOUT: Layout = Layout { command_slots: 32, receive_slots: 32, completion_slots: 32 };

/// Runs an input.
pub fn run(data: &[u8]) {
    let _ = Message::decode(data);
    let fd = memfd::create("fuzz", LAYOUT.bytes() as u64, memfd::Pages::Small).expect("a file");
    let mut node = NodeEnd::map(&fd, LAYOUT).expect("a mapping");
    let mut client = ClientEnd::map(&fd, LAYOUT).expect("a mapping");
    let file = File::from(fd);
    let mut scratch = Scratch::default();

    // An input is steps of 10 bytes: what to do, where, with what.
    for step in data.chunks_exact(10) {
        let at = u16::from_le_bytes([step[0], step[1]]);
        let value = u64::from_le_bytes(step[2..].try_into().expect("8 bytes"));
        let done = match at >> 12 {
            // The client's own code, so that the rest has something to spoil.
            0 => client.send(at.into(), &send(at, &[value as u8; INLINE_MAX])).is_ok(),
            1 => client.receive(at.into(), &RecvWr { wr_id: value, sges: &[SGE; 3] }).is_ok(),
            2 => client.command(at.into(), &command(at, value)).is_ok(),
            3 => client.next_reply(&mut scratch).is_ok(),
            // The node.
            4 | 5 => take_requests(&mut node, &mut scratch),
            6 => take_receives(&mut node, &mut scratch),
            7 => node.room().is_ok_and(|room| room <= LAYOUT.completion_slots),
            8 => node.complete(&Completion { vqp: 1, source: None, wc: Wc::default() }).is_ok(),
            9 => {
                let _ = (node.must_wake(), node.sleep());
                node.awake();
                true
            }
            // Anything, anywhere.
            _ => {
                let words = (LAYOUT.bytes() / 8) as u64;
                let offset = u64::from(at & 0xfff) % words * 8;
                file.write_all_at(&value.to_le_bytes(), offset).expect("a word of the file");
                true
            }
        };
        if !done {
            return;
        }
    }
    take_requests(&mut node, &mut scratch);
    take_receives(&mut node, &mut scratch);
}

const SGE: Sge = Sge { addr: 0x1000, length: 64, lkey: 9 };

fn send(at: u16, bytes: &[u8]) -> SendWr<'_> {
    let remote = RemoteAddr { addr: at.into(), rkey: at.into() };
    let (op, payload) = match at & 3 {
        0 => (SendOp::Write(remote), Payload::Inline(&bytes[..usize::from(at >> 2 & 0x1ff)])),
        1 => (SendOp::Read(remote), Payload::Sges(&[SGE])),
        2 => (SendOp::FetchAdd { remote, add: 1 }, Payload::Sges(&[SGE; 2])),
        _ => (SendOp::Send, Payload::Sges(&[SGE; SGES_MAX])),
    };
    SendWr { wr_id: at.into(), op, flags: SendFlags::SIGNALED, payload, dest: None }
}

fn command(at: u16, value: u64) -> Command<'static> {
    match at & 3 {
        0 => Command::CreateVqp(VqpOptions::default()),
        1 => Command::Warm { gids: &[Gid([7; 16]); 5] },
        2 => Command::RegisterMr { addr: value, len: value, access: Default::default() },
        _ => Command::Goodbye,
    }
}

/// What a ring holds at most; more cannot come out, whatever is in it.
fn take_requests(node: &mut NodeEnd, scratch: &mut Scratch) -> bool {
    for _ in 0..=LAYOUT.command_slots {
        match node.next_request(scratch) {
            Ok(None) => return true,
            Err(_) => return false,
            Ok(Some(Request::Command { .. } | Request::Unknown { .. })) => {}
            Ok(Some(Request::Sends { wrs, .. })) => wrs.with(|wrs| {
                assert!((1..=BATCH_MAX).contains(&wrs.len()));
                for wr in wrs {
                    match wr.payload {
                        Payload::Sges(sges) => assert!(sges.len() <= SGES_MAX),
                        Payload::Inline(bytes) => assert!(bytes.len() <= INLINE_MAX),
                    }
                }
            }),
        }
    }
    panic!("more came out of the ring than fits in");
}

fn take_receives(node: &mut NodeEnd, scratch: &mut Scratch) -> bool {
    for _ in 0..=LAYOUT.receive_slots {
        match node.next_receives(scratch) {
            Ok(None) => return true,
            Err(_) => return false,
            Ok(Some(receives)) => receives.wrs.with(|wrs| {
                assert!((1..=BATCH_MAX).contains(&wrs.len()));
                assert!(wrs.iter().all(|wr| wr.sges.len() <= SGES_MAX));
            }),
        }
    }
    panic!("more came out of the ring than fits in");
}
