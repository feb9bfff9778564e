//! Children beside a node that answers as the tests will: what they have of a session before it says so, and when it says no.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use elver_portal::{
    ClientEnd, Command, HeirsLayout, Listener, NodeEnd, NodeHeir, NodeRecords, Request, Scratch,
    Via, memfd,
};
use elver_verbs::{Payload, RemoteAddr, SendFlags, SendOp, SendWr};

use super::*;
use crate::silent::WELCOME;
use crate::{Destination, SessionOptions};

const PATIENCE: Duration = Duration::from_secs(60);
const LAYOUT: HeirsLayout = HeirsLayout { heirs: 3, vqps: 1 };

/// The node's part of a set whose sessions are free.
struct Node {
    listener: Listener,
    heirs: Vec<(NodeHeir, NodeEnd)>,
    /// Where the children have the first session.
    addr: u64,
}

impl Node {
    fn free(&mut self, heir: usize, vqp: u32, times: u64) {
        let (place, end) = &mut self.heirs[heir];
        *end = place.anew();
        place.free((vqp + 1, vqp + 2), &[(vqp, Some(Via::Rc))], times);
    }

    /// Hears which session the next child wants, lets it do what it does meanwhile, and answers what `says` says.
    fn meets(&mut self, says: impl FnOnce(&mut Node, u32) -> Message) {
        let socket = self.waits_for(|node| node.listener.accept().unwrap());
        let heir = self.waits_for(|_| match socket.receive(false).unwrap() {
            Received::Message(Message::Inherit { set: 5, heir: Some(heir) }, None) => Some(heir),
            Received::Nothing => None,
            other => panic!("{other:?}"),
        });
        // It does not wait for an answer before it has what it needs.
        self.waits_for(|node| (node.rights(heir) == "rw-s").then_some(()));
        socket.send(&says(self, heir), None).unwrap();
        // Until it has heard that.
        self.waits_for(|_| match socket.receive(false).unwrap() {
            Received::Closed => Some(()),
            _ => None,
        });
    }

    fn waits_for<T>(&self, what: impl Fn(&Node) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = what(self) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "nothing comes");
            std::thread::yield_now();
        }
    }

    fn rights(&self, heir: u32) -> String {
        rights(self.addr, heir)
    }
}

/// How this process may use a session's pages, as the system says.
fn rights(addr: u64, heir: u32) -> String {
    let addr = addr + LAYOUT.at(heir) - LAYOUT.at(0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).ok();
        (at(start)?..at(end)?).contains(&addr).then(|| words.next().map(ToString::to_string))?
    };
    maps.lines().find_map(of).unwrap_or_default()
}

/// A set as a child of who prepared it has it, and what its node does.
fn child(name: &str, does: impl FnOnce(&mut Node) + Send + 'static) -> (Heirs, JoinHandle<Node>) {
    let path = std::env::temp_dir().join(format!("elver-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = Listener::bind(&path).unwrap();
    let file = memfd::create(name, LAYOUT.bytes(), memfd::Pages::Small).unwrap();
    let records = NodeRecords::map(&file, LAYOUT).unwrap();
    let place = |heir| {
        let place = NodeHeir::map(&file, &records, heir).unwrap();
        let end = place.anew();
        (place, end)
    };
    let all = elver_portal::Heirs::map(&file, LAYOUT).unwrap();
    let mut node = Node { listener, heirs: (0..3).map(place).collect(), addr: all.addr() };
    (0..3).for_each(|heir| node.free(heir, 10 * heir as u32, 0));
    let heirs = heirs(all, path);
    let node = std::thread::spawn(move || {
        does(&mut node);
        node
    });
    (heirs, node)
}

fn heirs(all: elver_portal::Heirs, path: PathBuf) -> Heirs {
    let before = generation().wrapping_sub(1);
    let rings = memfd::create("rings", HeirsLayout::RINGS.bytes() as u64, memfd::Pages::Small);
    let end = ClientEnd::map(rings.unwrap(), HeirsLayout::RINGS).unwrap();
    let (socket, _) = Socket::pair().unwrap();
    let parent = Session::of(Link::over(socket, end, WELCOME, SessionOptions::default()));
    parent.inner.borrow_mut().belongs_to(Origin(before));
    Heirs {
        parent,
        set: 5,
        all,
        destinations: vec![Destination::new(WELCOME.gid)],
        options: PrepareOptions::default(),
        path,
        welcome: WELCOME,
        session: SessionOptions::default(),
        generation: before,
        taken: Cell::new(None),
        assigned: RefCell::default(),
    }
}

/// The handles of what was not granted were dropped as others are, which tells the node so, in rings that are another child's.
#[test]
fn a_child_that_is_refused_has_nothing_and_told_nobody_and_takes_another() {
    let (heirs, node) = child("refuses", |node| {
        node.meets(|_, _| Message::Rejected { text: "another has it".into() });
        assert_eq!(node.rights(1), "---s");
        assert!(node.heirs[1].1.is_idle(), "it wrote into another's rings");
        node.meets(|_, heir| Message::Inherited { heir: heir + 1 });
        node.meets(|_, heir| Message::Inherited { heir });
    });
    let addr = heirs.all.addr();
    let refused = heirs.take(1).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::Rejected { text } if text == "another has it"), "{refused}");
    // Nor has it one that it did not ask for.
    let other = heirs.take(0).map(drop).unwrap_err();
    assert!(matches!(other, Error::Invalid { .. }), "{other}");
    assert_eq!([0, 1, 2].map(|heir| rights(addr, heir)), ["---s", "---s", "---s"]);

    let heir = heirs.take(2).unwrap();
    assert_eq!((heir.number, heir.vqps[0].id()), (2, 20));
    assert_eq!([0, 1, 2].map(|heir| rights(addr, heir)), ["---p", "---p", "rw-s"]);
    let twice = heirs.take(1).map(drop).unwrap_err();
    assert!(matches!(twice, Error::NotInherited(NotInherited::Twice { heir: 2 })), "{twice}");
    // This is its own: what it drops is gone.
    drop(heir);
    let mut node = node.join().unwrap();
    let mut scratch = Scratch::default();
    let told = node.heirs[2].1.next_request(&mut scratch).unwrap();
    let command = Command::DestroyVqp { vqp: 20 };
    assert!(matches!(told, Some(Request::Command { command: of, .. }) if of == command));
}

/// Another child had it and ended, between this one's look at the records and the node's.
#[test]
fn a_session_that_was_made_anew_meanwhile_is_what_it_is_now() {
    let (heirs, node) = child("renews", |node| {
        node.meets(|node, heir| {
            node.free(heir as usize, 77, 1);
            Message::Inherited { heir }
        });
    });
    let heir = heirs.take(0).unwrap();
    let (vqp, mr) = (&heir.vqps[0], heir.mr.as_ref().unwrap());
    assert_eq!((vqp.id(), mr.lkey(), mr.rkey()), (77, 78, 79));
    let (op, sges) = (SendOp::Read(RemoteAddr { addr: 0, rkey: 1 }), [mr.sge(0, 8)]);
    let payload = Payload::Sges(&sges);
    let read = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[read]).unwrap();
    drop(heir);
    let mut node = node.join().unwrap();
    let mut scratch = Scratch::default();
    let told = node.heirs[0].1.next_request(&mut scratch).unwrap();
    assert!(matches!(told, Some(Request::Sends { vqp: 77, .. })), "it came into the rings");
}
