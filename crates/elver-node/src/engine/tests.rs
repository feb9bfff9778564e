//! The engine, driven by hand, with clients that put in what they like and take nothing.

use elver_portal::{Answer, ClientEnd, Command, Layout, Message, PushError, Received, Reply, numa};
use elver_soft::SoftConfig;
use elver_verbs::{AccessFlags, Payload, RecvWr, SendFlags, SendOp, SendWr};

use super::account::Account;
use super::*;

pub(super) const USER: Account = Account { uid: 1_001, space: 0, is_root: false };

pub(super) fn engine(address: [u8; 4]) -> (Engine, Outlet) {
    engine_of(address, |_| {})
}

/// With other settings than the usual ones.
pub(super) fn engine_of(address: [u8; 4], set: impl FnOnce(&mut Config)) -> (Engine, Outlet) {
    let mut config = Config::default();
    config.socket.spare_sessions = 0;
    set(&mut config);
    config.node.address = address.into();
    let mut soft = SoftConfig::for_address(address.into());
    soft.publish = false;
    let device = SoftDevice::open(soft).unwrap();
    let core = Core::new(device, config.core(), 1, now()).unwrap();
    let (outlet, inlet) = channel().unwrap();
    let engine = Engine::new(core, config, None, inlet, outlet.clone(), Arc::default()).unwrap();
    (engine, outlet)
}

/// A session of an account's, and the client's end of it.
pub(super) fn session(engine: &mut Engine, account: Account) -> (elver_portal::Socket, ClientEnd) {
    let (ours, theirs) = elver_portal::Socket::pair().unwrap();
    let layout = Layout { command_slots: 512, receive_slots: 512, completion_slots: 8_192 };
    theirs.send(&Message::Hello { layout, first: None }, None).unwrap();
    engine.admit(ours, now());
    let token = engine.newcomers[0];
    let slot = engine.sessions.of_token(token).unwrap();
    engine.sessions.get(slot).unwrap().customer.account = account;
    engine.meet(now());
    // It has begun, and makes room for the next one as if some time had passed.
    while let Some(token) = engine.newcomers.pop() {
        engine.watch(token, now());
    }
    let Received::Message(Message::Welcome(welcome), Some(file)) = theirs.receive(true).unwrap()
    else {
        panic!("no welcome")
    };
    let end = ClientEnd::map(file, welcome.layout).unwrap();
    (theirs, end)
}

/// WRs of an account that were taken.
fn taken(engine: &mut Engine, uid: u32) -> u64 {
    engine.status().users.iter().find(|user| user.uid == uid).unwrap().wrs
}

/// Fills a session's rings; how many WRs that are. They name a VQP that there is not, so that each
/// is refused at once.
fn fill(end: &mut ClientEnd) -> u64 {
    let mut count = 0;
    let payload = Payload::Inline(b"");
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), payload, dest: None };
    loop {
        match end.send(77, &wr) {
            Ok(()) => count += 1,
            Err(PushError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    while end.receive(77, &RecvWr { wr_id: 2, sges: &[] }).is_ok() {
        count += 1;
    }
    count
}

/// In a round each session had its turn: whoever had more sessions got more done, and one with a
/// single session beside five hundred waited for all of them.
#[test]
fn one_busy_session_gets_as_much_done_as_another_users_five_hundred() {
    let (mut engine, _outlet) = engine([127, 99, 3, 1]);
    let account = |uid| Account { uid, space: 0, is_root: false };
    let mut crowd: Vec<_> = (0..500).map(|_| session(&mut engine, account(1_001))).collect();
    let (socket, mut single) = session(&mut engine, account(1_002));
    let crowds: u64 = crowd.iter_mut().map(|(_, end)| fill(end)).sum();
    let singles = fill(&mut single);
    assert!(crowds == 500 * singles && singles > 500);
    for (socket, end) in crowd.iter().map(|(socket, end)| (socket, end)).chain([(&socket, &single)])
    {
        if end.must_wake() {
            socket.wake().unwrap();
        }
    }
    let mut rounds = 0;
    while taken(&mut engine, 1_002) < singles {
        engine.poll(Driver::Thread);
        rounds += 1;
        assert!(rounds < 10_000, "it never had its turn");
    }
    let crowds_share = taken(&mut engine, 1_001);
    // The sockets are looked at a few at a time, so that the crowd may even have had less.
    assert!(crowds_share <= 2 * singles, "{crowds_share} beside {singles}");
    // And it is not kept from its own: alone it gets all of it done.
    while taken(&mut engine, 1_001) < crowds {
        engine.poll(Driver::Thread);
        rounds += 1;
        assert!(rounds < 1_000_000, "{} of {crowds}", taken(&mut engine, 1_001));
    }
}

/// Puts a command in, which the engine takes at once; what it was refused with, or nothing if it was
/// answered otherwise. None without an answer so far.
pub(super) fn ask(
    engine: &mut Engine,
    user: &mut (elver_portal::Socket, ClientEnd),
    request: u32,
    command: &Command<'_>,
) -> Option<Option<RefusalCode>> {
    put(engine, user, request, command);
    reply(&mut user.1, request)
}

/// As [`ask`], and takes no answer.
fn put(
    engine: &mut Engine,
    (socket, end): &mut (elver_portal::Socket, ClientEnd),
    request: u32,
    command: &Command<'_>,
) {
    assert!(end.command(request, command).unwrap());
    if end.must_wake() {
        socket.wake().unwrap();
    }
    engine.look(now());
    engine.serve(now());
}

/// As [`ask`], once the engine has answered.
pub(super) fn reply(end: &mut ClientEnd, request: u32) -> Option<Option<RefusalCode>> {
    let mut scratch = Scratch::default();
    match end.next_reply(&mut scratch).unwrap()? {
        Reply::Answer { request: of, answer } if of == request => Some(match answer {
            Answer::Refused(refusal) => Some(refusal.code),
            _ => None,
        }),
        other => panic!("{other:?}"),
    }
}

/// Drives the engine until something is so.
pub(super) fn until<T>(engine: &mut Engine, mut is: impl FnMut(&mut Engine) -> Option<T>) -> T {
    let begun = now();
    loop {
        if let Some(found) = is(engine) {
            return found;
        }
        assert!(now().ns_since(begun) < 20_000_000_000, "waited in vain");
        engine.poll(Driver::Thread);
        std::thread::yield_now();
    }
}

#[test]
fn a_session_has_so_many_commands_that_wait() {
    let (mut engine, _outlet) = engine([127, 99, 3, 16]);
    let mut user = session(&mut engine, USER);
    let create = Command::CreateVqp(elver_portal::VqpOptions::default());
    engine.sessions.open(0).unwrap().pending = super::desk::PENDING_MAX - 1;
    assert_eq!(ask(&mut engine, &mut user, 1, &create), Some(None));
    engine.sessions.open(0).unwrap().pending += 1;
    assert_eq!(ask(&mut engine, &mut user, 2, &create), Some(Some(RefusalCode::Busy)));
    engine.sessions.open(0).unwrap().pending -= 1;
    assert_eq!(ask(&mut engine, &mut user, 3, &create), Some(None));
}

/// The engine did it, and stood in it while the process began another program.
#[test]
fn another_thread_opens_a_processs_memory() {
    use rustix::process::{PidfdFlags, pidfd_open};
    let (mut engine, _outlet) = engine([127, 99, 3, 23]);
    let mut user = session(&mut engine, USER);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    child.wait().unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    let register = Command::RegisterMr { addr: 4_096, len: 8, access };
    for (request, is_trusted) in [(1, false), (2, true)] {
        let session = engine.sessions.get(0).unwrap();
        session.peer.pid = Some(pid);
        session.customer.is_trusted = is_trusted;
        session.process = Some(process.try_clone().unwrap());
        session.open.as_mut().unwrap().process = None;
        // What is wrong with it is seen by who opens it.
        assert_eq!(ask(&mut engine, &mut user, request, &register), None);
        let refused = until(&mut engine, |_| reply(&mut user.1, request));
        assert_eq!(refused, Some(RefusalCode::OutOfRange));
    }
    assert_eq!(engine.sessions.quotas.of(USER).mrs, 0);
}

#[test]
fn so_many_vqps_are_listed_and_all_are_counted() {
    use crate::status::VQPS_LISTED_MAX;
    let (mut engine, _outlet) = engine([127, 99, 3, 17]);
    let mut user = session(&mut engine, USER);
    let create = Command::CreateVqp(elver_portal::VqpOptions::default());
    for request in 0..VQPS_LISTED_MAX as u32 + 5 {
        assert_eq!(ask(&mut engine, &mut user, request, &create), Some(None));
    }
    let status = engine.status();
    let all = VQPS_LISTED_MAX as u64 + 5;
    assert_eq!((status.vqps.len(), status.vqps_total), (VQPS_LISTED_MAX, all));
}

/// The system refuses a process mappings from the 65,531st on, and the node could not even allocate for itself.
#[test]
fn a_user_is_refused_mappings_that_the_node_needs() {
    let (mut engine, _outlet) = engine_of([127, 99, 3, 18], |config| {
        config.memory.max_mappings = 64;
    });
    let mut user = session(&mut engine, USER);
    let access = AccessFlags::LOCAL_WRITE;
    let alloc = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let mut had = 0;
    let refused = loop {
        match ask(&mut engine, &mut user, had, &alloc) {
            Some(None) => had += 1,
            other => break other,
        }
        // The file, so that the next one finds room in the socket.
        while !matches!(user.0.receive(true).unwrap(), Received::Message(Message::Memory { .. }, _))
        {
        }
    };
    // With its session's three it has half of them.
    assert_eq!((refused, had + 3), (Some(Some(RefusalCode::Limit)), 32));
    let mut other = session(&mut engine, Account { uid: 1_002, ..USER });
    assert_eq!(ask(&mut engine, &mut other, 1, &alloc), Some(None));
    assert_eq!(engine.status().engine["mappings"], 36);
    drop(user);
    until(&mut engine, |engine| (engine.status().engine["mappings"] == 4).then_some(()));
}

#[test]
fn memory_is_made_at_a_numa_node_that_has_some_and_refused_at_others() {
    let (mut engine, _outlet) = engine([127, 99, 3, 22]);
    let mut user = session(&mut engine, USER);
    let access = AccessFlags::LOCAL_WRITE;
    let alloc =
        |near| Command::AllocMrNear { len: 4_096, addr: 0x10_0000, access, huge: false, near };
    let near = numa::nodes().first().copied().unwrap_or(0);
    assert_eq!(ask(&mut engine, &mut user, 1, &alloc(near)), Some(None));
    assert!(matches!(
        user.0.receive(true).unwrap(),
        Received::Message(Message::Memory { request: 1 }, Some(_))
    ));
    assert_eq!(engine.sessions.quotas.of(USER).mrs, 1);
    if numa::nodes().is_empty() {
        return;
    }
    for near in [numa::NODES_MAX - 1, u16::MAX] {
        let refused = ask(&mut engine, &mut user, 2, &alloc(near));
        assert_eq!(refused, Some(Some(RefusalCode::OutOfRange)));
    }
    assert_eq!(engine.sessions.quotas.of(USER).mrs, 1);
    assert_eq!(engine.status().engine["regions_unplaced"], 0);
}

/// The engine gave memory back itself, by a call of the system's that waits for whoever holds the lock of its file.
#[test]
fn whose_memory_does_not_go_is_answered_later_and_pays_for_it_until_then() {
    let (mut engine, _outlet) = engine([127, 99, 3, 20]);
    let other = Account { uid: 1_002, ..USER };
    let access = AccessFlags::LOCAL_WRITE;
    let alloc = Command::AllocMr { len: 4_096, addr: 0x10_0000, access, huge: false };
    let mut sessions = [USER, other].map(|account| session(&mut engine, account));
    let lkeys = [0, 1].map(|at| {
        let (socket, end) = &mut sessions[at];
        assert!(end.command(1, &alloc).unwrap());
        if end.must_wake() {
            socket.wake().unwrap();
        }
        until(&mut engine, |_| match end.next_reply(&mut Scratch::default()).unwrap()? {
            Reply::Answer { answer: Answer::Mr { lkey, .. }, .. } => Some(lkey),
            other => panic!("{other:?}"),
        })
    });
    let [mut user, mut others] = sessions;
    let ending = session(&mut engine, USER);
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(0);
    engine.maker.asides.run(USER, move |_| assert!(wait.recv().is_err()));
    let usage = |engine: &Engine, account| engine.sessions.quotas.of(account);
    let before = usage(&engine, USER);
    let deregister = |lkey| Command::DeregisterMr { lkey };
    assert_eq!(ask(&mut engine, &mut user, 2, &deregister(lkeys[0])), None);
    assert_eq!(ask(&mut engine, &mut others, 2, &deregister(lkeys[1])), None);
    assert_eq!(until(&mut engine, |_| reply(&mut others.1, 2)), None);
    assert_eq!(usage(&engine, other).bytes, 0);
    // A session of the other's ends, and nothing of it is left.
    drop(others);
    until(&mut engine, |engine| (usage(engine, other).sessions == 0).then_some(()));
    assert_eq!((reply(&mut user.1, 2), usage(&engine, USER)), (None, before));
    // Nor does one of its own keep its place, but what is mapped of it.
    drop(ending);
    let sessions = before.sessions - 1;
    until(&mut engine, |engine| (usage(engine, USER).sessions == sessions).then_some(()));
    assert_eq!(usage(&engine, USER), Usage { sessions, ..before });
    drop(go);
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 2)), None);
    assert_eq!(usage(&engine, USER).bytes, 0);
    until(&mut engine, |engine| (usage(engine, USER) == Usage::SESSION).then_some(()));
}

/// Once its goodbye was answered it was served again, and had a file made and sent.
#[test]
fn what_is_asked_behind_a_goodbye_is_refused_when_that_is_answered_too() {
    let (mut engine, _outlet) = engine([127, 99, 3, 26]);
    let mut user = session(&mut engine, USER);
    assert_eq!(ask(&mut engine, &mut user, 1, &Command::Goodbye), None);
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 1)), None);
    let access = AccessFlags::LOCAL_WRITE;
    let prepare = Command::Prepare { heirs: 1, vqps: 0, mr_len: 0, access };
    assert_eq!(ask(&mut engine, &mut user, 2, &prepare), Some(Some(RefusalCode::State)));
}

/// Who had ordered something and waited for it heard nothing of it any more, or only behind the answer to its goodbye; and a
/// set's file that was begun came all the same.
#[test]
fn what_is_ordered_and_not_there_at_a_goodbye_is_answered() {
    let access = AccessFlags::LOCAL_WRITE;
    let alloc = Command::AllocMr { len: 1 << 20, addr: 0x10_0000, access, huge: false };
    let prepare = |heirs| Command::Prepare { heirs, vqps: 0, mr_len: 0, access };
    let (small, large) = (prepare(1), prepare(400));
    let bytes = |heirs| elver_portal::HeirsLayout { heirs, vqps: 0 }.bytes();
    assert!(bytes(1) < pieces::TURN_BYTES && bytes(400) > pieces::TURN_BYTES);
    for (host, orders) in
        [(28, [alloc, alloc, small]), (33, [small, alloc, small]), (34, [large, alloc, small])]
    {
        let (mut engine, outlet) = engine([127, 99, 3, host]);
        let mut user = session(&mut engine, USER);
        // The maker has something to tell, and nobody hears it.
        while outlet.try_send(Notice::Remove { gid: elver_verbs::Gid([0; 16]) }) {}
        assert_eq!(ask(&mut engine, &mut user, 1, &orders[0]), None);
        while engine.maker.jobs.len() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(ask(&mut engine, &mut user, 2, &orders[1]), None);
        assert_eq!(ask(&mut engine, &mut user, 3, &orders[2]), None);
        assert_eq!((engine.maker.jobs.len(), engine.sessions.open(0).unwrap().pending), (2, 3));
        put(&mut engine, &mut user, 4, &Command::Goodbye);
        let begun = now();
        while engine.sessions.open(0).unwrap().goodbye.is_some() {
            engine.core.poll(now());
            engine.tidy(now());
            assert!(now().ns_since(begun) < 20_000_000_000, "waited in vain");
        }
        let mut answers = answers_until(&mut engine, &mut user, 4);
        assert_eq!(answers.pop(), Some((4, None)));
        answers.sort_unstable_by_key(|(request, _)| *request);
        assert_eq!(answers, [1, 2, 3].map(|request| (request, Some(RefusalCode::State))));
        assert_eq!(engine.sessions.open(0).unwrap().pending, 0);
        until(&mut engine, |engine| (engine.sessions.quotas.of(USER).bytes == 0).then_some(()));
        assert!(user.1.next_reply(&mut Scratch::default()).unwrap().is_none());
        while let Received::Message(message, file) = user.0.receive(true).unwrap() {
            assert!(matches!(message, Message::Wake) && file.is_none());
        }
    }
}

/// They were answered behind the goodbye, or never.
#[test]
fn what_is_sealed_and_registered_and_not_there_at_a_goodbye_is_answered() {
    use rustix::process::{PidfdFlags, pidfd_open};
    let (mut engine, outlet) = engine([127, 99, 3, 35]);
    let mut user = session(&mut engine, USER);
    let access = AccessFlags::LOCAL_WRITE;
    let prepare = Command::Prepare { heirs: 1, vqps: 0, mr_len: 0, access };
    assert_eq!(ask(&mut engine, &mut user, 1, &prepare), None);
    assert_eq!(until(&mut engine, |_| reply(&mut user.1, 1)), None);
    // What is found, or made ready, is told by a thread, and nobody hears it.
    while outlet.try_send(Notice::Remove { gid: elver_verbs::Gid([0; 16]) }) {}
    let seal = Command::Seal { set: 0, addr: 0, must_connect: false };
    assert_eq!(ask(&mut engine, &mut user, 2, &seal), None);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&child);
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    child.wait().unwrap();
    let session = engine.sessions.get(0).unwrap();
    (session.peer.pid, session.process) = (Some(pid), Some(process));
    let register = Command::RegisterMr { addr: 4_096, len: 8, access };
    assert_eq!(ask(&mut engine, &mut user, 3, &register), None);
    assert_eq!(engine.sessions.open(0).unwrap().pending, 2);
    put(&mut engine, &mut user, 4, &Command::Goodbye);
    let refused = |request| (request, Some(RefusalCode::State));
    let answers = answers_until(&mut engine, &mut user, 4);
    assert_eq!(answers, [refused(2), refused(3), (4, None)]);
    assert_eq!(engine.sessions.open(0).unwrap().pending, 0);
    until(&mut engine, |engine| (engine.sessions.quotas.of(USER).bytes == 0).then_some(()));
    assert!(user.1.next_reply(&mut Scratch::default()).unwrap().is_none());
}

/// What a session is answered, each with what it was refused with, up to that request.
fn answers_until(
    engine: &mut Engine,
    user: &mut (elver_portal::Socket, ClientEnd),
    last: u32,
) -> Vec<(u32, Option<RefusalCode>)> {
    let mut answers = Vec::new();
    while answers.last().is_none_or(|(request, _)| *request != last) {
        answers.push(until(engine, |_| {
            let mut scratch = Scratch::default();
            let reply = user.1.next_reply(&mut scratch).unwrap()?;
            let Reply::Answer { request, answer } = reply else { panic!("{reply:?}") };
            match answer {
                Answer::Refused(refusal) => Some((request, Some(refusal.code))),
                _ => Some((request, None)),
            }
        }));
    }
    answers
}

/// It counted no more once its session had ended, and others of the same user had the maker make as much again, and again.
#[test]
fn memory_that_is_being_made_counts_until_it_is_given_back_though_its_session_has_gone() {
    const BYTES: u64 = 1 << 20;
    let access = AccessFlags::LOCAL_WRITE;
    let alloc = Command::AllocMr { len: BYTES, addr: 0x10_0000, access, huge: false };
    for (host, says_goodbye) in [(24, false), (25, true)] {
        let (mut engine, outlet) = engine_of([127, 99, 3, host], |config| {
            config.quota.bytes = BYTES;
        });
        // The maker has something to tell, and nobody hears it.
        while outlet.try_send(Notice::Remove { gid: elver_verbs::Gid([0; 16]) }) {}
        let mut others = session(&mut engine, Account { uid: 1_002, ..USER });
        let mut user = session(&mut engine, USER);
        let bytes = |engine: &Engine| engine.sessions.quotas.of(USER).bytes;
        assert_eq!(ask(&mut engine, &mut user, 1, &alloc), None);
        while engine.maker.jobs.len() > 0 {
            std::thread::yield_now();
        }
        // What is not begun goes with the session.
        let mut second = session(&mut engine, Account { uid: 1_003, ..USER });
        assert_eq!(ask(&mut engine, &mut second, 1, &alloc), None);
        assert_eq!(engine.maker.jobs.len(), 1);
        engine.end(2, End::Closed, now());
        assert_eq!(engine.maker.jobs.len(), 0);
        assert_eq!(engine.sessions.quotas.of(Account { uid: 1_003, ..USER }).bytes, 0);
        if says_goodbye {
            assert_eq!(ask(&mut engine, &mut user, 2, &Command::Goodbye), None);
        } else {
            engine.end(1, End::Closed, now());
        }
        // All that the session had has gone; what was made comes last.
        let (mut made, mut is_refused, mut has_gone) = (None, false, false);
        let begun = now();
        while made.is_none() || !has_gone {
            engine.core.poll(now());
            engine.tidy(now());
            match engine.inlet.next() {
                Some(Notice::Made(one)) => made = Some(one),
                Some(notice) => engine.heed(notice, now()),
                None => std::thread::yield_now(),
            }
            has_gone |= match says_goodbye {
                // What it had ordered is answered first.
                true if !is_refused => {
                    is_refused = reply(&mut user.1, 1) == Some(Some(RefusalCode::State));
                    false
                }
                true => reply(&mut user.1, 2) == Some(None),
                false => engine.sessions.quotas.of(USER).mappings < Usage::SESSION.mappings,
            };
            assert!(now().ns_since(begun) < 20_000_000_000, "waited in vain");
        }
        assert_eq!(bytes(&engine), BYTES);
        engine.heed(Notice::Made(made.unwrap()), now());
        assert_eq!(bytes(&engine), BYTES, "it is still to be given back");
        until(&mut engine, |engine| (bytes(engine) == 0).then_some(()));
        assert_eq!(ask(&mut engine, &mut others, 1, &alloc), None);
        assert_eq!(until(&mut engine, |_| reply(&mut others.1, 1)), None);
    }
}

/// It was made first: gigabytes, and then given back.
#[test]
fn large_memory_that_cannot_be_registered_is_not_made() {
    let (mut engine, _outlet) = engine([127, 99, 3, 2]);
    let mut user = session(&mut engine, USER);
    let remote = AccessFlags::REMOTE_WRITE;
    for (request, addr, access) in
        [(1, u64::MAX - 4_096, AccessFlags::LOCAL_WRITE), (2, 0x10_0000, remote)]
    {
        let alloc = Command::AllocMr { len: 256 << 20, addr, access, huge: false };
        let refused = ask(&mut engine, &mut user, request, &alloc);
        assert_eq!(refused, Some(Some(RefusalCode::Device)));
        assert_eq!(engine.sessions.quotas.of(USER).mrs, 0);
    }
}

/// Each took a system call and a look at its rings, and was nobody's to pay for.
#[test]
fn who_wakes_the_engine_without_end_is_ended() {
    let (mut engine, _outlet) = engine([127, 99, 3, 7]);
    let (socket, end) = session(&mut engine, USER);
    let mut woken = 0;
    while engine.counters.violations_wakes == 0 {
        assert!(woken < 100_000);
        for _ in 0..8 {
            // A full socket, or one that was closed.
            let _ = socket.wake();
            woken += 1;
        }
        engine.look(now());
    }
    assert_eq!(engine.sessions.len(), 0);
    // Who sleeps in between is woken as often as it likes.
    let (socket, _end) = session(&mut engine, USER);
    for _ in 0..3 * woken {
        socket.wake().unwrap();
        engine.look(now());
        assert!(engine.sessions.all_sleep());
    }
    assert_eq!((engine.sessions.len(), engine.counters.violations_wakes), (1, 1));
    drop(end);
}

/// The flag by which it asked to be woken was taken down before the message went: a task that slept by its descriptor
/// slept on, whatever it was told.
#[test]
fn who_could_not_be_woken_is_woken_later() {
    let (mut engine, _outlet) = engine([127, 99, 3, 21]);
    let (socket, mut end) = session(&mut engine, USER);
    let create = Command::CreateVqp(elver_portal::VqpOptions::default());
    assert!(end.command(1, &create).unwrap() && end.sleep());
    // A socket that takes no message, though nobody has closed.
    let unconnected = || elver_portal::Socket::unconnected().unwrap();
    let (connected, cut) = (unconnected(), unconnected());
    let ours = &engine.sessions.at(0).unwrap().socket;
    connected.leave(ours).unwrap();
    ours.leave(&cut).unwrap();
    assert!(engine.serve(now()));
    engine.wake_clients();
    assert_eq!((engine.counters.wakes, engine.counters.wakes_failed), (0, 1));
    assert!(!end.is_idle() && matches!(socket.receive(true).unwrap(), Received::Nothing));
    // It does not keep the engine awake, which looks at it now and then.
    assert!(engine.sessions.all_sleep() && engine.sessions.needs_watching());
    engine.sessions.at(0).unwrap().socket.leave(&connected).unwrap();
    until(&mut engine, |_| match socket.receive(true).unwrap() {
        Received::Nothing => None,
        Received::Message(Message::Wake, None) => Some(()),
        other => panic!("{other:?}"),
    });
    assert_eq!(engine.counters.wakes, 1);
    assert!(engine.sessions.all_sleep() && !engine.sessions.needs_watching());
}

/// Its socket was closed without a word, as if the node had ended.
#[test]
fn who_is_turned_away_before_it_has_said_anything_is_told_why() {
    let (mut engine, _outlet) = engine([127, 99, 3, 15]);
    engine.config.quota.sessions_total = 0;
    let mut sockets = Vec::new();
    for _ in 0..sessions::GREETINGS_MAX {
        let (ours, theirs) = elver_portal::Socket::pair().unwrap();
        engine.admit(ours, now());
        assert!(matches!(theirs.receive(true).unwrap(), Received::Nothing));
        sockets.push(theirs);
    }
    let (ours, theirs) = elver_portal::Socket::pair().unwrap();
    let hello = Message::Hello { layout: Layout::default(), first: None };
    theirs.send(&hello, None).unwrap();
    engine.admit(ours, now());
    let Received::Message(Message::Rejected { text }, None) = theirs.receive(true).unwrap() else {
        panic!("it is told nothing")
    };
    assert!(text.contains("quota.sessions"), "{text}");
    assert!(matches!(theirs.receive(true).unwrap(), Received::Closed));
    assert_eq!(engine.counters.sessions_rejected, 1);
}

/// All sessions were served until each had been, and the core and the device had to wait.
#[test]
fn a_round_ends_though_there_is_more_to_take() {
    let (mut engine, _outlet) = engine([127, 99, 3, 8]);
    let mut all: Vec<_> = (0..8).map(|_| session(&mut engine, USER)).collect();
    let count: u64 = all.iter_mut().map(|(_, end)| fill(end)).sum();
    for (socket, end) in &all {
        if end.must_wake() {
            socket.wake().unwrap();
        }
    }
    while engine.look(now()) {}
    let mut before = 0;
    while before < count {
        engine.serve(now());
        let now = taken(&mut engine, USER.uid);
        // What was put in as one is taken as one.
        assert!((1..2_048).contains(&(now - before)), "{before}, {now} of {count}");
        before = now;
    }
}

/// A process of an account's that says hello; the file of its session, once it is let in.
fn begin(engine: &mut Engine, account: Account) -> (elver_portal::Socket, std::os::fd::OwnedFd) {
    let (ours, theirs) = elver_portal::Socket::pair().unwrap();
    let hello = Message::Hello { layout: Layout::default(), first: None };
    engine.admit(ours, now());
    let token = *engine.newcomers.last().unwrap();
    let slot = engine.sessions.of_token(token).unwrap();
    engine.sessions.get(slot).unwrap().customer.account = account;
    theirs.send(&hello, None).unwrap();
    engine.attend(token, now());
    let Received::Message(Message::Welcome(_), Some(file)) = theirs.receive(true).unwrap() else {
        panic!("no welcome")
    };
    (theirs, file)
}

#[test]
fn a_session_that_was_made_ahead_is_its_takers_alone_and_counts_for_it_from_then_on() {
    let (mut engine, _outlet) =
        engine_of([127, 99, 3, 30], |config| config.socket.spare_sessions = 2);
    assert!(engine.sessions.users().is_empty() && engine.sessions.quotas.mappings() == 0);
    let mut numbers = Vec::new();
    let mut all = Vec::new();
    for uid in [1_001, 1_002, 1_003] {
        let account = Account { uid, ..USER };
        let (socket, file) = begin(&mut engine, account);
        let file = std::fs::File::from(file);
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut bytes).unwrap();
        assert!(bytes.len() == Layout::default().bytes() && bytes.iter().all(|byte| *byte == 0));
        // For who gets the next one, if it were the same.
        std::os::unix::fs::FileExt::write_all_at(&file, b"mine", 4_096).unwrap();
        numbers.push(std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
        let users = engine.sessions.users();
        let user = users.iter().find(|user| user.uid == uid).unwrap();
        assert_eq!((user.sessions, users.len()), (1, numbers.len()));
        let each = Usage::SESSION.of_memory().mappings;
        assert_eq!(engine.sessions.quotas.mappings(), each * numbers.len() as u32);
        all.push((socket, file));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3);
}

/// The memory of the last one was given back while the next one began, which took three times as long then where it shares
/// the engine's core.
#[test]
fn what_ended_sessions_left_waits_while_a_process_begins_and_not_for_ever() {
    let (mut engine, _outlet) = engine([127, 99, 3, 31]);
    let there = |file: &std::os::fd::OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks > 0;
    // What was handed to the account's thread before is done.
    let settled = |engine: &mut Engine| {
        let (done, is_done) = std::sync::mpsc::channel();
        engine.maker.asides.run(USER, move |_| done.send(()).unwrap());
        is_done.recv().unwrap();
    };
    let (socket, file) = begin(&mut engine, USER);
    engine.sessions.open(0).unwrap().vqps.insert(7, 1);
    engine.sessions.quotas.count(USER, Usage::VQP);
    drop(socket);
    engine.end(0, End::Closed, now());
    let (_next, _) = begin(&mut engine, Account { uid: 1_002, ..USER });
    // All that the core has of it is gone at once: it had nothing.
    let opened = engine.opened_at;
    engine.cleared_at = opened;
    engine.tidy(Time(opened.0 + BEGINS_NS - 1));
    settled(&mut engine);
    assert!(there(&file));
    // Who comes next may have what it had all the same.
    assert_eq!(engine.sessions.quotas.of(USER).vqps, 0);
    engine.tidy(Time(opened.0 + BEGINS_NS));
    settled(&mut engine);
    assert!(!there(&file));

    let (socket, file) = begin(&mut engine, USER);
    drop(socket);
    let token = *engine.newcomers.last().unwrap();
    let slot = engine.sessions.of_token(token).unwrap();
    engine.end(slot, End::Closed, now());
    let cleared = Time(opened.0 + BEGINS_NS);
    assert_eq!(engine.cleared_at, cleared);
    // They come without an end.
    for (after, is_there) in [(CLEAR_NS_MAX - 1, true), (CLEAR_NS_MAX, false)] {
        engine.opened_at = Time(cleared.0 + after);
        engine.tidy(engine.opened_at);
        settled(&mut engine);
        assert_eq!(there(&file), is_there);
    }
}

#[test]
fn a_round_that_lets_a_process_in_says_so() {
    let (mut engine, outlet) = engine([127, 99, 3, 32]);
    let (ours, theirs) = elver_portal::Socket::pair().unwrap();
    let hello = Message::Hello { layout: Layout::default(), first: None };
    theirs.send(&hello, None).unwrap();
    assert!(outlet.try_send(Notice::Adopt { socket: ours }));
    until(&mut engine, |engine| engine.has_let_in().then_some(()));
    assert!(matches!(theirs.receive(true).unwrap(), Received::Message(Message::Welcome(_), _)));
    engine.poll(Driver::Thread);
    assert!(!engine.has_let_in());
}
