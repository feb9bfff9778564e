//! Clients that reach memory of others themselves: who may, what he gets, and how it is taken back from those who do
//! not give it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use elver_memory::peer::PeerMemory;
use elver_node::NodeThread;
use elver_node::config::Config;
use elver_portal::{Answer, ClientGate, Command, DOORS_MAX, Reach, RefusalCode};
use elver_verbs::AccessFlags;

use crate::common::{Client, PATIENCE, Refused, Region, engine_counter, free_address, gid};
use crate::{client, config, node};

fn direct(address: &str) -> Config {
    let mut config = config(address);
    config.direct.enabled = true;
    // Nobody who had no core for a while is cut off.
    config.direct.patience_ms = PATIENCE.as_millis() as u64;
    config
}

/// A client that may have a gate.
struct Reacher {
    client: Client,
    vqp: u32,
    gate: Option<ClientGate>,
}

impl Reacher {
    /// One with a VQP that is connected to its node.
    fn new(node: &NodeThread, address: &str) -> Reacher {
        let mut client = client(node);
        let vqp = client.create();
        client.qconnect(vqp, gid(address), 0).unwrap();
        Reacher { client, vqp, gate: None }
    }

    /// Asks for a region; what the node says of it, and its file if there is one.
    fn reach_over(&mut self, vqp: u32, rkey: u32) -> Result<(Reach, Option<OwnedFd>), Refused> {
        let request = self.client.begin(&Command::Reach { vqp, rkey });
        let reach = self.client.answer(request, |answer| match answer {
            Answer::Reached(reach) => Some(reach),
            _ => None,
        })?;
        if self.gate.is_none() {
            self.gate = Some(ClientGate::map(self.client.file(request)).unwrap());
        }
        Ok((reach, (reach.file_bytes > 0).then(|| self.client.file(request))))
    }

    fn reach(&mut self, rkey: u32) -> Result<(Reach, Option<OwnedFd>), Refused> {
        self.reach_over(self.vqp, rkey)
    }

    fn gate(&mut self) -> &mut ClientGate {
        self.gate.as_mut().unwrap()
    }
}

/// A region, and who reaches it, with its gate.
struct Reached {
    owner: Client,
    region: Region,
    other: Reacher,
    there: Reach,
    gate: ClientGate,
}

impl Reached {
    fn new(node: &NodeThread, address: &str) -> Reached {
        let (mut owner, mut other) = (client(node), Reacher::new(node, address));
        let region = owner.alloc(64).unwrap();
        let (there, _) = other.reach(region.rkey).unwrap();
        let gate = other.gate.take().unwrap();
        Reached { owner, region, other, there, gate }
    }
}

fn code<T>(result: Result<T, Refused>) -> RefusalCode {
    result.err().expect("a refusal").0
}

#[test]
fn who_has_the_key_gets_the_file_and_no_more() {
    let address = free_address();
    let node = node(direct(&address));
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let region = owner.alloc(5_000).unwrap();
    assert_eq!(code(other.reach_over(other.vqp ^ 1, region.rkey)), RefusalCode::NoSuchVqp);
    let idle = other.client.create();
    assert_eq!(code(other.reach_over(idle, region.rkey)), RefusalCode::State);
    for rkey in [0, region.rkey ^ 1, region.rkey ^ 1 << 20, u32::MAX] {
        assert_eq!(code(other.reach(rkey)), RefusalCode::NoSuchMr);
    }

    let (there, file) = other.reach(region.rkey).unwrap();
    assert_eq!((there.addr, there.len, there.file_bytes), (region.addr, 5_000, 5_000));
    let memory = PeerMemory::map(file.unwrap(), 5_000, true).unwrap();
    memory.write(4_992, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(region.memory.read_u64(4_992).unwrap(), 7);
    assert!(other.gate().enter(there.door, there.generation).is_some());
    // For another VQP it is the same door.
    let more = other.client.create();
    other.client.qconnect(more, gid(&address), 0).unwrap();
    let (again, none) = other.reach_over(more, region.rkey).unwrap();
    assert_eq!(again, Reach { file_bytes: 0, ..there });
    assert!(none.is_none());

    owner.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap();
    assert!(other.gate().enter(there.door, there.generation).is_none());
    assert_eq!(code(other.reach(region.rkey)), RefusalCode::NoSuchMr);
    let next = owner.alloc(100).unwrap();
    let (next, _) = other.reach(next.rkey).unwrap();
    assert_eq!(next.door, there.door, "a door is used again");
    assert!(other.gate().enter(there.door, there.generation).is_none(), "by the old key to it not");
    assert!(other.gate().enter(next.door, next.generation).is_some());
}

#[test]
fn a_piece_of_an_arena_and_what_is_closed_to_peers_are_reached_by_nobody() {
    let address = free_address();
    let node = node(direct(&address));
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let rkey = |answer: Answer<'_>| match answer {
        Answer::Mr { rkey, .. } => Some(rkey),
        _ => None,
    };
    let carved = Command::CarveMr { len: 64, offset: 0, addr: 0x7000, access };
    let carved = owner.ask(&carved, rkey).unwrap();
    let own = [0_u8; 64];
    let registered = Command::RegisterMr {
        addr: own.as_ptr() as u64,
        len: 64,
        access: AccessFlags::REMOTE_READ,
    };
    let registered = owner.ask(&registered, rkey).unwrap();
    let closed = Command::AllocMr {
        len: 64,
        addr: 0x10_0000,
        access: AccessFlags::LOCAL_WRITE,
        huge: false,
    };
    let closed = owner.ask(&closed, rkey).unwrap();
    for rkey in [carved, registered, closed] {
        assert_eq!(code(other.reach(rkey)), RefusalCode::NoSuchMr);
    }
}

#[test]
fn a_region_that_is_only_read_cannot_be_written() {
    let address = free_address();
    let node = node(direct(&address));
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let command = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let rkey = owner
        .ask(&command, |answer| match answer {
            Answer::Mr { rkey, .. } => Some(rkey),
            _ => None,
        })
        .unwrap();
    let (reach, file) = other.reach(rkey).unwrap();
    assert_eq!(reach.access, access);
    let file = file.unwrap();
    assert!(PeerMemory::map(&file, 4_096, true).is_err());
    assert!(PeerMemory::map(&file, 4_096, false).is_ok());
    assert_eq!(rustix::io::pwrite(&file, &[1], 0), Err(rustix::io::Errno::BADF));
}

#[test]
fn there_are_so_many_doors() {
    let address = free_address();
    let node = node(direct(&address));
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let regions: Vec<_> = (0..=DOORS_MAX).map(|_| owner.alloc(8).unwrap()).collect();
    for region in &regions[..DOORS_MAX as usize] {
        let (there, _) = other.reach(region.rkey).unwrap();
        assert!(other.gate().enter(there.door, there.generation).is_some());
    }
    let last = regions.last().unwrap().rkey;
    assert_eq!(code(other.reach(last)), RefusalCode::Limit);
    owner.done(&Command::DeregisterMr { lkey: regions[5].lkey }).unwrap();
    assert!(other.reach(last).is_ok());
}

#[test]
fn who_guesses_keys_is_not_told_for_a_while() {
    let address = free_address();
    let mut config = direct(&address);
    config.quota.exempt_root = false;
    let node = node(config);
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let region = owner.alloc(64).unwrap();
    let began = Instant::now();
    for guess in 0..1_200 {
        assert_eq!(code(other.reach(guess)), RefusalCode::NoSuchMr);
    }
    // One guess is forgiven each 100 ms: that may be between two requests, not between all of these.
    let is_kept_out = (0..50).any(|_| {
        assert_eq!(code(other.reach(0)), RefusalCode::NoSuchMr);
        other.reach(region.rkey).is_err()
    });
    assert!(is_kept_out);
    let forgiven = 10 * (began.elapsed().as_secs() + 1);
    let core = node.status().unwrap().core;
    let wrong = core["mr_keys_wrong"];
    assert!((1_000..=1_000 + forgiven).contains(&wrong), "{wrong}, {forgiven} forgiven");
    assert!(core["mr_keys_refused"] > 0);
}

/// Whether a request has an answer by now.
fn is_answered(client: &mut Client) -> bool {
    !client.end.is_idle()
}

#[test]
fn a_deregistration_waits_for_who_is_inside() {
    let address = free_address();
    let node = node(direct(&address));
    let Reached { mut owner, region, mut other, there, mut gate } = Reached::new(&node, &address);
    let inside = gate.enter(there.door, there.generation).unwrap();
    let request = owner.begin(&Command::DeregisterMr { lkey: region.lkey });
    // Many times the lease, and the node does other things meanwhile.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        assert!(!is_answered(&mut owner));
        node.status().unwrap();
    }
    drop(inside);
    owner.answer(request, |answer| matches!(answer, Answer::Done).then_some(())).unwrap();
    assert_eq!(engine_counter(&node.status().unwrap(), "direct_stuck"), 0);
    other.client.create();
}

#[test]
fn who_stands_still_inside_is_cut_off() {
    let address = free_address();
    let mut config = direct(&address);
    config.direct.patience_ms = 300;
    let node = node(config);
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let regions = [owner.alloc(64).unwrap(), owner.alloc(64).unwrap()];
    let doors = regions.each_ref().map(|region| other.reach(region.rkey).unwrap().0);
    let mut gate = other.gate.take().unwrap();
    let inside = gate.enter(doors[0].door, doors[0].generation).unwrap();
    let began = Instant::now();
    let refused = owner.done(&Command::DeregisterMr { lkey: regions[0].lkey });
    assert!(began.elapsed() >= Duration::from_millis(300));
    let (code, text) = refused.unwrap_err();
    assert_eq!(code, RefusalCode::Busy);
    assert!(text.contains("stopped"), "{text}");
    other.client.ended();
    assert_eq!(engine_counter(&node.status().unwrap(), "direct_stuck"), 1);
    // It goes on, and gets in nowhere any more.
    drop(inside);
    for there in doors {
        assert!(gate.enter(there.door, there.generation).is_none());
    }
    // It is gone, and the owner has lost nothing else.
    owner.done(&Command::DeregisterMr { lkey: regions[1].lkey }).unwrap();
    let (code, _) = owner.done(&Command::DeregisterMr { lkey: regions[0].lkey }).unwrap_err();
    assert_eq!(code, RefusalCode::NoSuchMr);
    owner.done(&Command::Goodbye).unwrap();
}

/// The end of a session is not that of its process, which may be inside.
#[test]
fn who_is_inside_when_its_session_ends_is_waited_for_all_the_same() {
    let address = free_address();
    let node = node(direct(&address));
    let Reached { mut owner, region, other, there, mut gate } = Reached::new(&node, &address);
    let inside = gate.enter(there.door, there.generation).unwrap();
    drop(other);
    crate::common::wait_for("the session to end", || {
        (node.status().unwrap().sessions.len() == 1).then_some(())
    });
    let request = owner.begin(&Command::DeregisterMr { lkey: region.lkey });
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(400) {
        assert!(!is_answered(&mut owner));
    }
    drop(inside);
    owner.answer(request, |answer| matches!(answer, Answer::Done).then_some(())).unwrap();
    assert!(gate.enter(there.door, there.generation).is_none());
}

/// Others could make the node keep something for each of many.
#[test]
fn who_stands_still_behind_its_session_is_waited_for_so_long_and_so_many() {
    let address = free_address();
    let mut config = direct(&address);
    config.direct.patience_ms = 400;
    let node = node(config);
    let mut owner = client(&node);
    let region = owner.alloc(64).unwrap();
    let began = Instant::now();
    let mut gates = Vec::new();
    let enters = || {
        let mut other = Reacher::new(&node, &address);
        let (there, _) = other.reach(region.rkey).unwrap();
        let mut gate = other.gate.take().unwrap();
        // It never leaves.
        std::mem::forget(gate.enter(there.door, there.generation).unwrap());
        (other, gate)
    };
    for _ in 0..79 {
        gates.push(enters().1);
    }
    // The last one's session ends behind the request, so that nobody's patience is over before it.
    let (last, gate) = enters();
    gates.push(gate);
    crate::common::wait_for("the other sessions to end", || {
        (node.status().unwrap().sessions.len() == 2).then_some(())
    });
    let request = owner.begin(&Command::DeregisterMr { lkey: region.lkey });
    drop(last);
    let refused = owner.answer(request, |answer| matches!(answer, Answer::Done).then_some(()));
    assert_eq!(code(refused), RefusalCode::Busy);
    assert!(began.elapsed() >= Duration::from_millis(400));
    let next = owner.alloc(64).unwrap();
    let mut other = Reacher::new(&node, &address);
    assert!(other.reach(next.rkey).is_ok());
    owner.done(&Command::DeregisterMr { lkey: next.lkey }).unwrap();
}

#[test]
fn a_goodbye_waits_for_who_is_inside() {
    let address = free_address();
    let node = node(direct(&address));
    let Reached { mut owner, other: _stays, there, mut gate, .. } = Reached::new(&node, &address);
    let inside = gate.enter(there.door, there.generation).unwrap();
    let request = owner.begin(&Command::Goodbye);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(400) {
        assert!(!is_answered(&mut owner));
    }
    drop(inside);
    owner.answer(request, |answer| matches!(answer, Answer::Done).then_some(())).unwrap();
}

#[test]
fn what_an_owner_had_that_is_gone_is_shut() {
    let address = free_address();
    let node = node(direct(&address));
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let region = owner.alloc(64).unwrap();
    let (there, _) = other.reach(region.rkey).unwrap();
    assert!(other.gate().enter(there.door, there.generation).is_some());
    drop(owner);
    crate::common::wait_for("the door to be shut", || {
        other.gate().enter(there.door, there.generation).is_none().then_some(())
    });
}

#[test]
fn a_node_that_is_told_not_to_says_so() {
    let address = free_address();
    let mut config = direct(&address);
    config.direct.enabled = false;
    let node = node(config);
    let (mut owner, mut other) = (client(&node), Reacher::new(&node, &address));
    let region = owner.alloc(64).unwrap();
    let (code, text) = other.reach(region.rkey).err().unwrap();
    assert_eq!(code, RefusalCode::Unsupported);
    assert!(text.contains("direct.enabled"), "{text}");
}
