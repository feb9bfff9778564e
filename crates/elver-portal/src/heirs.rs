//! The memory of sessions that are made ahead, for the children of a process: one file, of which the
//! parent has two mappings, so that a fork copies no more however many sessions there are.
//!
//! ```text
//!   records of all sessions     written by the node; parent and children can read them and nothing else
//!   from a page on, for each session:
//!     the rings and the arena, as `Layout` has them, to which the parent has no access. A child gets it to the one
//!     that it takes, and loses the others
//! ```

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use elver_verbs::Via;

use crate::ends::{ClientEnd, NodeEnd};
use crate::layout::Layout;
use crate::memory::{Closed, Words};

const PAGE: usize = 4096;
/// What records are multiples of: two cache lines, so that the node's writing of one disturbs who reads no other.
const RECORD_ALIGN: usize = 16;
/// Words of a record before those of its VQPs.
const HEAD_WORDS: usize = 8;
const STATE: usize = 0;
const KEYS: usize = 1;
const TIMES: usize = 2;

/// Most VQPs of a session that is made ahead.
pub const VQPS_PER_HEIR_MAX: u32 = 256;

const FREE: u64 = 1;
const TAKEN: u64 = 2;
/// What stands for a VQP that could not be connected.
const UNCONNECTED: u64 = u8::MAX as u64;

/// Where everything stands in the file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeirsLayout {
    /// How many sessions.
    pub heirs: u32,
    /// VQPs of each, at most [`VQPS_PER_HEIR_MAX`].
    pub vqps: u32,
}

/// How a session of a set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is being made, for the first time or anew after a child has ended.
    Making,
    /// A child may take it.
    Free,
    /// A process has it.
    Taken {
        /// Its number.
        pid: i32,
    },
}

impl HeirsLayout {
    /// The rings of each. Smaller than those of a session that is opened: a child's first look at a
    /// page costs it half a microsecond.
    pub const RINGS: Layout =
        Layout { command_slots: 64, receive_slots: 64, completion_slots: 128 };

    /// Bytes of the file.
    pub fn bytes(self) -> u64 {
        self.at(self.heirs)
    }

    /// Where a session's rings begin, in bytes.
    pub fn at(self, heir: u32) -> u64 {
        self.records_bytes() + self.offset(heir)
    }

    /// Where a session's arena begins, in bytes.
    pub fn arena_at(self, heir: u32) -> u64 {
        self.at(heir) + Self::RINGS.arena_at() as u64
    }

    /// Where a session's arena begins, in bytes from where the first session does.
    pub fn arena_offset(self, heir: u32) -> u64 {
        self.offset(heir) + Self::RINGS.arena_at() as u64
    }

    fn offset(self, heir: u32) -> u64 {
        u64::from(heir) * Self::stride() as u64
    }

    fn stride() -> usize {
        Self::RINGS.bytes().next_multiple_of(PAGE)
    }

    fn record_words(self) -> usize {
        (HEAD_WORDS + self.vqps as usize).next_multiple_of(RECORD_ALIGN)
    }

    fn records_bytes(self) -> u64 {
        (u64::from(self.heirs) * self.record_words() as u64 * 8).next_multiple_of(PAGE as u64)
    }
}

/// A set as the parent and its children map it.
pub struct Heirs {
    records: Words,
    sessions: Closed,
    layout: HeirsLayout,
}

impl Heirs {
    /// Maps the file that came with the node's answer.
    ///
    /// # Errors
    /// It is shorter than the set, or may become so, or cannot be mapped.
    pub fn map(file: impl AsFd, layout: HeirsLayout) -> io::Result<Heirs> {
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory);
        let records = Words::map_to_read(&file, size(layout.records_bytes())?)?;
        let bytes = size(layout.offset(layout.heirs))?;
        let sessions = Closed::map(file, layout.records_bytes(), bytes)?;
        Ok(Heirs { records, sessions, layout })
    }

    /// Address of the first session: the same in every child.
    pub fn addr(&self) -> u64 {
        self.sessions.start().as_ptr() as u64
    }

    /// How many sessions.
    pub fn len(&self) -> u32 {
        self.layout.heirs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.layout.heirs == 0
    }

    /// How a session is.
    ///
    /// # Panics
    /// If there is none of this number, as the others.
    #[inline]
    pub fn record(&self, heir: u32) -> Record {
        let state = self.word(heir, STATE).load(Ordering::Acquire);
        match state & 0xff {
            FREE => Record::Free,
            TAKEN => Record::Taken { pid: (state >> 32) as i32 },
            _ => Record::Making,
        }
    }

    /// Times that it came back from a child.
    pub fn times(&self, heir: u32) -> u64 {
        self.word(heir, TIMES).load(Ordering::Acquire)
    }

    /// Local and remote key of its memory region. To be read when it is taken.
    pub fn keys(&self, heir: u32) -> (u32, u32) {
        let keys = self.word(heir, KEYS).load(Ordering::Relaxed);
        (keys as u32, (keys >> 32) as u32)
    }

    /// One of its VQPs, and what backs it; nothing if it could not be connected.
    pub fn vqp(&self, heir: u32, at: u32) -> (u32, Option<Via>) {
        let word = self.word(heir, HEAD_WORDS + at as usize).load(Ordering::Relaxed);
        let via = u8::try_from(word >> 32).ok().and_then(Via::from_code);
        (word as u32, via)
    }

    /// The client's end of a session's rings, for who is about to take it. What he uses it for before he knows that he has
    /// it, another may find. One at a time.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] for another one; what the system said.
    pub fn open(&self, heir: u32) -> io::Result<ClientEnd> {
        let (at, bytes) = self.place(heir);
        let words = self.sessions.open(at, bytes)?;
        // What its owner needs first, the rings and the first page of the arena, at once: each page costs a fault else.
        words.part(0, (HeirsLayout::RINGS.arena_at() + PAGE) / 8).touch();
        Ok(ClientEnd::over(&words, HeirsLayout::RINGS))
    }

    /// Who opened a session has taken it: he has no way to the others from now on.
    ///
    /// # Errors
    /// What the system said.
    pub fn keep(&self, heir: u32) -> io::Result<()> {
        let (at, bytes) = self.place(heir);
        self.sessions.keep(at, bytes)
    }

    /// Who opened a session has not taken it: he has no way to it any more, and may open another.
    ///
    /// # Errors
    /// What the system said: the session is open still.
    ///
    /// # Panics
    /// If its end is there still.
    pub fn close(&self, heir: u32) -> io::Result<()> {
        let (at, bytes) = self.place(heir);
        self.sessions.close(at, bytes)
    }

    /// Where a session lies in the mapping of all, and how long it is.
    fn place(&self, heir: u32) -> (usize, usize) {
        self.check(heir);
        // It lies in the mapping.
        (self.layout.offset(heir) as usize, HeirsLayout::stride())
    }

    fn check(&self, heir: u32) {
        assert!(heir < self.layout.heirs, "session {heir} of {}", self.layout.heirs);
    }

    fn word(&self, heir: u32, word: usize) -> &std::sync::atomic::AtomicU64 {
        self.check(heir);
        &self.records[heir as usize * self.layout.record_words() + word]
    }
}

/// The records of a set as the node maps them.
pub struct NodeRecords {
    words: Words,
    layout: HeirsLayout,
}

impl NodeRecords {
    /// Maps them.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub fn map(file: impl AsFd, layout: HeirsLayout) -> io::Result<NodeRecords> {
        let bytes = usize::try_from(layout.records_bytes());
        let bytes = bytes.map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(NodeRecords { words: Words::map(file, bytes, false)?, layout })
    }
}

/// A session of a set as the node maps it.
pub struct NodeHeir {
    record: Words,
    rings: Words,
}

impl NodeHeir {
    /// Maps the rings of a session. The arena is no part of it.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    ///
    /// # Panics
    /// If the set has none of this number.
    pub fn map(file: impl AsFd, records: &NodeRecords, heir: u32) -> io::Result<NodeHeir> {
        let NodeRecords { words, layout } = records;
        let record = words.part(heir as usize * layout.record_words(), layout.record_words());
        let bytes = HeirsLayout::RINGS.ring_bytes();
        Ok(NodeHeir { record, rings: Words::map_from(file, layout.at(heir), bytes, true)? })
    }

    /// Makes rings and record empty, whoever has them mapped, and gives the node's end of them. Their pages are there: a child
    /// would wait for them, some microseconds each.
    pub fn anew(&self) -> NodeEnd {
        self.gone();
        self.rings.discard();
        self.rings.touch();
        NodeEnd::over(&self.rings, HeirsLayout::RINGS)
    }

    /// Names its VQPs and keys, and lets a child take it.
    ///
    /// # Panics
    /// If there are more VQPs than the set's have.
    pub fn free(&self, keys: (u32, u32), vqps: &[(u32, Option<Via>)], times: u64) {
        let keys = u64::from(keys.0) | u64::from(keys.1) << 32;
        self.record[KEYS].store(keys, Ordering::Relaxed);
        for (at, (vqp, via)) in vqps.iter().enumerate() {
            self.name(at, *vqp, *via);
        }
        // Behind what goes with it: who has read the one has the other.
        self.record[TIMES].store(times, Ordering::Release);
        self.record[STATE].store(FREE, Ordering::Release);
    }

    /// One of its VQPs has failed, which a child may take with it just now.
    ///
    /// # Panics
    /// If there are more VQPs than the set's have.
    pub fn failed(&self, at: usize, vqp: u32) {
        self.name(at, vqp, None);
    }

    fn name(&self, at: usize, vqp: u32, via: Option<Via>) {
        let via = via.map_or(UNCONNECTED, |via| u64::from(via.code()));
        self.record[HEAD_WORDS + at].store(u64::from(vqp) | via << 32, Ordering::Relaxed);
    }

    /// Says who has it.
    pub fn taken(&self, pid: i32) {
        let state = TAKEN | u64::from(pid as u32) << 32;
        self.record[STATE].store(state, Ordering::Release);
    }

    /// Says that nobody can take it any more.
    pub fn gone(&self) {
        self.record[STATE].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Request, Scratch, memfd};

    fn set(name: &str, heirs: u32, vqps: u32) -> (std::os::fd::OwnedFd, NodeRecords, Heirs) {
        let layout = HeirsLayout { heirs, vqps };
        let file = memfd::create(name, layout.bytes(), memfd::Pages::Small).unwrap();
        let records = NodeRecords::map(&file, layout).unwrap();
        let heirs = Heirs::map(&file, layout).unwrap();
        (file, records, heirs)
    }

    #[test]
    fn what_a_child_left_is_gone_when_its_session_is_made_anew() {
        let (file, records, heirs) = set("test", 3, 2);
        let node = NodeHeir::map(&file, &records, 1).unwrap();
        let all = rustix::fs::fstat(&file).unwrap().st_blocks;
        for times in 0..3 {
            let mut end = node.anew();
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, all, "pages are missing");
            assert_eq!(heirs.record(1), Record::Making);
            node.free((7, 9), &[(5, Some(Via::Rc)), (6, None)], times);
            assert_eq!((heirs.record(1), heirs.times(1)), (Record::Free, times));
            assert_eq!((heirs.record(0), heirs.record(2)), (Record::Making, Record::Making));
            assert_eq!(heirs.keys(1), (7, 9));
            assert_eq!([0, 1].map(|at| heirs.vqp(1, at)), [(5, Some(Via::Rc)), (6, None)]);
            node.failed(0, 5);
            assert_eq!([0, 1].map(|at| heirs.vqp(1, at)), [(5, None), (6, None)]);
            assert_eq!((heirs.record(1), heirs.times(1)), (Record::Free, times));
            node.taken(44);
            assert_eq!(heirs.record(1), Record::Taken { pid: 44 });
            // It asks as many times as the ring does not divide, and leaves some unread. Each child has the mappings anew.
            let child = Heirs::map(&file, HeirsLayout { heirs: 3, vqps: 2 }).unwrap();
            let (mut client, mut scratch) = (child.open(1).unwrap(), Scratch::default());
            for request in 0..70 {
                assert!(client.command(request, &Command::Goodbye).unwrap());
                if request < 65 {
                    let next = end.next_request(&mut scratch).unwrap().unwrap();
                    assert!(matches!(next, Request::Command { request: of, .. } if of == request));
                }
            }
        }
    }

    /// How this process may use the page at an address, as the system says, and whether it is of the file of that name.
    fn page(addr: u64) -> Option<(String, bool)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let at = |text| u64::from_str_radix(text, 16).ok();
            let rights = words.next()?.to_string();
            let is_file = line.contains("memfd:opened");
            (at(start)?..at(end)?).contains(&addr).then_some((rights, is_file))
        })
    }

    #[test]
    fn nobody_reaches_a_session_but_who_opened_it_and_he_no_other() {
        for taken in 0..3 {
            let (.., heirs) = set("opened", 3, 1);
            let at = |heir| heirs.addr() + heirs.layout.offset(heir);
            let records = heirs.records.start().as_ptr() as u64;
            for heir in 0..3 {
                assert_eq!(page(at(heir)).unwrap(), ("---s".into(), true));
            }
            assert_eq!(page(records).unwrap(), ("r--s".into(), true));
            // SAFETY: more is asked for on a page of our own than it may have, which changes nothing.
            let opened = unsafe { libc::mprotect(records as *mut _, PAGE, libc::PROT_WRITE) };
            assert_eq!(opened, -1, "the records were opened for writing");

            // Who does not get what he opened has it no more, and tries another.
            let refused = (taken + 1) % 3;
            drop(heirs.open(refused).unwrap());
            assert_eq!(page(at(refused)).unwrap(), ("rw-s".into(), true));
            heirs.close(refused).unwrap();
            for heir in 0..3 {
                assert_eq!(page(at(heir)).unwrap(), ("---s".into(), true));
            }

            let client = heirs.open(taken).unwrap();
            heirs.keep(taken).unwrap();
            for heir in 0..3 {
                let expected = if heir == taken { ("rw-s", true) } else { ("---p", false) };
                let found = page(at(heir)).unwrap();
                assert_eq!((found.0.as_str(), found.1), expected, "{heir} where {taken} is taken");
            }
            assert_eq!(
                client.arena().as_ptr() as u64,
                heirs.addr() + heirs.layout.arena_offset(taken)
            );
            for heir in 0..3 {
                let again = heirs.open(heir).map(drop).unwrap_err();
                assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            }
            // The place of all is kept until nobody has any of it.
            let start = heirs.addr();
            drop(heirs);
            assert_eq!(page(client.arena().as_ptr() as u64).unwrap(), ("rw-s".into(), true));
            drop(client);
            assert!(page(start).is_none_or(|(_, is_file)| !is_file));
        }
    }

    #[test]
    fn who_leaves_a_session_has_zeros_of_its_own() {
        let (file, _, heirs) = set("test", 1, 1);
        let client = heirs.open(0).unwrap();
        let start = client.arena().as_ptr();
        // SAFETY: the arena is mapped while `client` lives.
        unsafe { start.write(7) };
        client.leave().unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(start.read(), 0);
            start.write(9);
        }
        let mut byte = [0];
        let arena = HeirsLayout { heirs: 1, vqps: 1 }.arena_at(0);
        assert_eq!((rustix::io::pread(&file, &mut byte, arena), byte), (Ok(1), [7]));
    }

    #[test]
    fn sessions_lie_apart() {
        for vqps in [0, 1, 8, 9, VQPS_PER_HEIR_MAX] {
            let layout = HeirsLayout { heirs: 400, vqps };
            assert!(layout.record_words() >= HEAD_WORDS + vqps as usize);
            assert!(400 * layout.record_words() as u64 * 8 <= layout.at(0));
            for heir in 0..400 {
                assert_eq!(layout.at(heir) % PAGE as u64, 0);
                assert!(layout.arena_at(heir) + crate::ARENA_BYTES <= layout.at(heir + 1));
            }
            assert_eq!(layout.bytes(), layout.at(400));
        }
    }
}
