//! Whether there is memory for what processes ask for. The kernel would not refuse it: it gives page
//! by page until it has to kill somebody, in a container with a limit most likely this process.
//!
//! What was given stays given: pages that a process gives back (`MADV_REMOVE`) come again when somebody
//! touches them, so that they are room for nobody else as long as the memory is the process's.

use std::collections::HashMap;
use std::fs::read_to_string;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use elver_portal::memfd::{self, Pages};
use elver_verbs::Time;

use super::account::Account;
use super::shelf::{Look, Shelf, Shelved};
use crate::clock::now;

/// Bytes that stay for the node itself, and for others of its container.
const RESERVE_BYTES: u64 = 16 << 20;
/// Bytes that are given at most between two looks at what there is: a look takes tens of
/// microseconds, more than a small piece of memory.
const UNLOOKED_BYTES_MAX: u64 = 32 << 20;
/// What is given so is at most this part of what there is.
const UNLOOKED_SHARE: u64 = 8;

/// One user has at most so many times what is left for others.
const HOLDINGS_PER_REST: u64 = 3;

/// So long after somebody was refused what there is is not looked at again for others who ask for as much.
const REFUSED_NS: u64 = 10_000_000;

/// This process's.
static ROOM: LazyLock<Room> = LazyLock::new(Room::default);

/// What has been given, and what is known of what there is.
#[derive(Debug)]
struct Room {
    /// Bytes that may be given before the next look.
    unlooked: AtomicU64,
    /// Bytes that were given, of files that are being made, and that are still to be set aside.
    coming: AtomicU64,
    /// What there was room for when somebody was refused: who asks for more than that soon after is refused without a
    /// look.
    refused_room: AtomicU64,
    /// When that was; 0 for never.
    refused_at: AtomicU64,
    /// Whether it matters how many pages were given back.
    is_tight: AtomicBool,
    /// Files, by account.
    shelves: Mutex<HashMap<Account, Arc<Shelf>>>,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            unlooked: AtomicU64::new(0),
            coming: AtomicU64::new(0),
            refused_room: AtomicU64::new(0),
            refused_at: AtomicU64::new(0),
            is_tight: AtomicBool::new(false),
            shelves: Mutex::default(),
        }
    }
}

/// A file in memory that counts in full as long as somebody has it.
#[derive(Clone, Debug)]
pub(crate) struct Backing(Arc<Shelved>);

impl Backing {
    /// Whether nobody else of this process has it.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// A process of an account's is about to be handed it, and may give pages of it back. Once.
    pub(super) fn is_had_by(&self, account: Account) {
        self.0.put_on(&ROOM.shelf(account));
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes a file in memory, if there is room for it; one who has `held` bytes already must leave some to
/// others. Huge pages are set aside ahead and need no room.
pub(super) fn memfd(
    name: &str,
    bytes: u64,
    pages: Pages,
    held: Option<u64>,
) -> io::Result<Backing> {
    let mut growing = Growing::begin(name, bytes, (pages, None), held)?;
    growing.go_on(bytes)?;
    Ok(growing.end().0)
}

/// A file in memory that is being made: there is room for all of it, and it is set aside piece by piece.
#[derive(Debug)]
pub(super) struct Growing {
    file: memfd::Making,
    /// Bytes that take room.
    counted: u64,
    coming: Coming<'static>,
}

impl Growing {
    /// As [`memfd`], at a NUMA node, if one is wanted and the system takes that wish. Nothing of it is there.
    pub(super) fn begin(
        name: &str,
        bytes: u64,
        (pages, near): (Pages, Option<u16>),
        held: Option<u64>,
    ) -> io::Result<Growing> {
        let counted = if pages == Pages::Small { bytes } else { 0 };
        let coming = match pages {
            Pages::Small => ROOM.take(bytes, held, now(), room)?,
            Pages::Huge => Coming::new(&ROOM, 0),
        };
        Ok(Growing { file: memfd::Making::begin(name, bytes, pages, near)?, counted, coming })
    }

    /// Sets so many bytes more aside; how many of all are there by then.
    pub(super) fn go_on(&mut self, bytes: u64) -> io::Result<u64> {
        let done = self.file.go_on(bytes)?;
        self.coming.becomes(self.counted.saturating_sub(done));
        Ok(done)
    }

    /// Bytes that are there.
    pub(super) fn done(&self) -> u64 {
        self.file.done()
    }

    /// The file, and whether the system took the wish where it is to lie.
    pub(super) fn end(self) -> (Backing, bool) {
        let (file, is_near) = self.file.end();
        (Backing(Arc::new(Shelved::new(file, self.counted))), is_near)
    }
}

impl AsFd for Growing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Bytes that were given and are not there: room for nobody else, until they are, or are given up.
#[derive(Debug)]
struct Coming<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Coming<'_> {
    fn new(room: &Room, bytes: u64) -> Coming<'_> {
        room.coming.fetch_add(bytes, Ordering::Relaxed);
        Coming { room, bytes }
    }

    /// So many are left.
    fn becomes(&mut self, bytes: u64) {
        self.room.coming.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

/// Where it matters, has each account's files looked at, by what `aside` has done for it: who has them can keep waiting
/// whoever looks.
pub(super) fn tend(aside: impl FnMut(Account, Look)) {
    ROOM.tend(aside);
}

impl Room {
    fn shelf(&self, account: Account) -> Arc<Shelf> {
        self.shelves().entry(account).or_default().clone()
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<Account, Arc<Shelf>>> {
        // Held for a few instructions, in which nothing is left half done.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives so many bytes, that are to come. `room` tells how many there are without those that were given back, which come when somebody
    /// touches them.
    fn take(
        &self,
        bytes: u64,
        held: Option<u64>,
        now: Time,
        room: impl FnOnce() -> Option<u64>,
    ) -> io::Result<Coming<'_>> {
        // First, so that who asks meanwhile is not given the same.
        let coming = Coming::new(self, bytes);
        let less = |left: u64| left.checked_sub(bytes);
        if self.unlooked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Ok(coming);
        }
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        if refused_at > 0 && now.ns_since(Time(refused_at)) < REFUSED_NS {
            judge(self.refused_room.load(Ordering::Relaxed), bytes, held)?;
        }
        // A system that does not tell has to do without being asked.
        let Some(room) = room() else { return Ok(coming) };
        let others = self.coming.load(Ordering::Relaxed).saturating_sub(bytes);
        let room = room.saturating_sub(others);
        let sums = self
            .shelves()
            .values()
            .map(|shelf| (shelf.bytes(), shelf.missing()))
            .fold((0_u64, 0_u64), |(bytes, missing), one| {
                (bytes.saturating_add(one.0), missing.saturating_add(one.1))
            });
        if room.saturating_sub(sums.0) / (1 + HOLDINGS_PER_REST) <= bytes {
            self.is_tight.store(true, Ordering::Relaxed);
        }
        let room = room.saturating_sub(sums.1);
        let rest = judge(room, bytes, held).inspect_err(|_| {
            self.refused_room.store(room, Ordering::Relaxed);
            self.refused_at.store(now.0, Ordering::Relaxed);
        })?;
        let unlooked = (rest / UNLOOKED_SHARE).min(UNLOOKED_BYTES_MAX);
        self.unlooked.store(unlooked, Ordering::Relaxed);
        Ok(coming)
    }

    fn tend(&self, mut aside: impl FnMut(Account, Look)) {
        let mut shelves = self.shelves();
        shelves.retain(|_, shelf| shelf.bytes() > 0 || Arc::strong_count(shelf) > 1);
        if !self.is_tight.swap(false, Ordering::Relaxed) {
            return;
        }
        let wanted: Vec<_> = shelves.iter().map(|(account, one)| (*account, one.clone())).collect();
        drop(shelves);
        for (account, shelf) in wanted {
            if let Some(look) = shelf.begin() {
                aside(account, look);
            }
        }
    }
}

/// What is left of so much room when somebody has been given some; or why he is not.
fn judge(room: u64, bytes: u64, held: Option<u64>) -> io::Result<u64> {
    let Some(rest) = room.checked_sub(bytes) else {
        let what = format!("{bytes} bytes, and this machine or container has room for {room}");
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
    };
    if held.is_some_and(|held| held.saturating_add(bytes) / HOLDINGS_PER_REST > rest) {
        let what = format!(
            "{bytes} bytes more for one user, and {room} for it and all others: it must leave some"
        );
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
    }
    Ok(rest)
}

/// Mappings that processes may have in this one, where so many are allowed: of those that the system lets it have an
/// eighth stays for the node itself, which ends without.
pub(super) fn mappings(allowed: u32) -> u32 {
    let most = read_to_string("/proc/sys/vm/max_map_count").ok();
    let most = most.and_then(|text| text.trim().parse::<u32>().ok());
    most.map_or(allowed, |most| allowed.min(most - most / 8))
}

/// Bytes that there is room for, as far as the system tells: on the machine, and in the control
/// groups that this process is in.
pub(super) fn room() -> Option<u64> {
    static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| {
        let text = |path| read_to_string(path).unwrap_or_default();
        groups(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"))
    });
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let rooms = groups.iter().filter_map(Group::room);
    Some(rooms.chain(machine).min()?.saturating_sub(RESERVE_BYTES))
}

/// What `/proc/meminfo` says.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A control group that may limit memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    directory: PathBuf,
    names: &'static Names,
}

/// What its files are called.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: pages of files that give way.
    cache: &'static str,
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};
const V2: Names = Names { limit: "memory.max", usage: "memory.current", cache: "inactive_file" };

impl Group {
    /// The bytes that it has left, if it has a limit.
    fn room(&self) -> Option<u64> {
        let text = |name| read_to_string(self.directory.join(name)).ok();
        // Without a limit the second version says `max`.
        let limit: u64 = text(self.names.limit)?.trim().parse().ok()?;
        let usage: u64 = text(self.names.usage)?.trim().parse().ok()?;
        let stat = text("memory.stat").unwrap_or_default();
        let cache = stat.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            if name == self.names.cache { value.parse().ok() } else { None }
        });
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    }
}

/// The control groups of a process that may limit its memory, by what the system says of its mounts
/// and of it.
fn groups(mounts: &str, of_process: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in of_process.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && controllers.split(',').all(|one| one != "memory") {
            continue;
        }
        let Some((root, point)) = mounts.lines().find_map(|line| mount(line, is_v2)) else {
            continue;
        };
        // Seen from another namespace the path begins elsewhere, and the mount is all there is.
        let inner = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let inner: PathBuf =
            inner.components().filter(|one| matches!(one, Component::Normal(_))).collect();
        let names = if is_v2 { &V2 } else { &V1 };
        groups.extend(
            inner.ancestors().map(|inner| Group { directory: Path::new(point).join(inner), names }),
        );
    }
    groups
}

/// Root and place of a mount of control groups with memory, if a line of `mountinfo` is of one.
fn mount(line: &str, is_v2: bool) -> Option<(&str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let fits = match kind {
        "cgroup2" => is_v2,
        "cgroup" => !is_v2 && options.split(',').any(|one| one == "memory"),
        _ => false,
    };
    let mut fields = mount.split(' ').skip(3);
    fits.then_some((fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(available("MemFree: 1 kB\nMemAvailable:   24 kB\n"), Some(24 << 10));
        assert_eq!(available("MemFree: 1 kB\n"), None);
        assert!(room().unwrap() > 0);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let most = room().unwrap();
        for bytes in [most + (64 << 30), u64::MAX] {
            let error = memfd("test", bytes, Pages::Small, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        }
        memfd("test", 4_096, Pages::Small, None).unwrap();
        // Somebody who has as much as there is must leave the rest to others.
        let error = Room::default().take(4_096, Some(8 * most), START, room).unwrap_err();
        assert!(error.to_string().contains("must leave some"), "{error}");
    }

    const USER: Account = Account { uid: 1, space: 0, is_root: false };
    const START: Time = Time(1 << 40);

    fn file(room: &Room, bytes: u64) -> Shelved {
        let file = memfd::create("test", bytes, Pages::Small).unwrap();
        let file = Shelved::new(file, bytes);
        file.put_on(&room.shelf(USER));
        file
    }

    /// They seemed to be room for more, again and again.
    #[test]
    fn pages_that_were_given_back_are_taken_all_the_same() {
        use rustix::fs::FallocateFlags;
        const BYTES: u64 = 8 << 20;
        let room = Room::default();
        let file = file(&room, BYTES);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 0, BYTES / 2).unwrap();
        // There is as much as it has given back, and that is what it may have to be given.
        let most = || Some(BYTES / 2);
        room.take(4_096, None, START, most).unwrap();
        room.tend(|_, look| look.finish());
        room.unlooked.store(0, Ordering::Relaxed);
        assert!(room.take(4_096, None, START, most).is_err());
        drop(file);
        room.tend(|_, _| {});
        // It was refused a moment ago, by which the next one goes; and soon no more, whoever tends it.
        let before = Time(START.0 + REFUSED_NS - 1);
        assert!(room.take(4_096, None, before, most).is_err());
        room.take(4_096, None, Time(START.0 + REFUSED_NS), most).unwrap();
    }

    /// Two that were made in turns would have been given the same room.
    #[test]
    fn what_is_still_to_come_is_room_for_nobody_else() {
        let room = Room::default();
        let most = || Some(64 << 20);
        let mut coming = room.take(48 << 20, None, START, most).unwrap();
        room.unlooked.store(0, Ordering::Relaxed);
        assert!(room.take(32 << 20, None, START, most).is_err());
        let later = Time(START.0 + REFUSED_NS);
        coming.becomes(32 << 20);
        room.take(32 << 20, None, later, most).unwrap();
        drop(coming);
        room.unlooked.store(0, Ordering::Relaxed);
        room.take(64 << 20, None, later, most).unwrap();
        assert_eq!(room.coming.load(Ordering::Relaxed), 0);
    }

    /// It was counted once it was given, and who asked until then was given the same.
    #[test]
    fn what_is_being_given_is_room_for_nobody_else() {
        let room = Room::default();
        let most = || Some(64 << 20);
        let given = room.take(48 << 20, None, START, || {
            room.take(32 << 20, None, START, most).unwrap_err();
            drop(room.take(8 << 20, None, START, most).unwrap());
            most()
        });
        assert_eq!(room.coming.load(Ordering::Relaxed), 48 << 20);
        drop(given.unwrap());
        assert_eq!(room.coming.load(Ordering::Relaxed), 0);
    }

    /// Each time all files of all users were looked at, and the system's books, by the engine.
    #[test]
    fn who_asks_again_for_what_there_is_not_has_nothing_looked_at() {
        let room = Room::default();
        let files: Vec<_> = (0..8).map(|_| file(&room, 1 << 20)).collect();
        let (mut asked, mut looked) = (0, 0);
        let mut now = START;
        for tending in 1..=3 {
            now = now.saturating_add_ns(REFUSED_NS);
            for _ in 0..1_000 {
                let error = room.take(1 << 30, Some(0), now, || {
                    asked += 1;
                    Some(64 << 20)
                });
                assert_eq!(error.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
            }
            assert_eq!(asked, tending, "once, until it is time to look again");
            room.tend(|account, look| {
                assert_eq!(account, USER);
                looked += 1;
                look.finish();
            });
            assert_eq!(looked, tending, "and so are the files, by a thread of their owner's");
        }
        // What there is anybody gets meanwhile, and files do not matter where there is plenty.
        assert!(room.take(1 << 30, None, now, || Some(64 << 20)).is_err());
        room.take(1 << 20, None, now, || Some(64 << 30)).unwrap();
        room.tend(|_, _| {});
        room.unlooked.store(0, Ordering::Relaxed);
        room.take(1 << 20, None, now, || Some(64 << 30)).unwrap();
        room.tend(|_, _| panic!("there is plenty"));
        drop(files);
    }

    #[test]
    fn groups_are_found_up_to_the_mount() {
        let mounts = "\
            30 23 0:27 / /proc rw - proc proc rw\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
            36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            40 31 0:40 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let process = "4:memory:/a/b\n1:cpu:/c\n0::/d\n";
        let found = groups(mounts, process);
        let names: Vec<_> = found.iter().map(|one| one.directory.to_str().unwrap()).collect();
        let (v1, v2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified");
        let expected = [
            format!("{v1}/a/b"),
            format!("{v1}/a"),
            format!("{v1}/"),
            format!("{v2}/d"),
            format!("{v2}/"),
        ];
        assert_eq!(names, expected);
        // In a container that sees its own part alone, and in a namespace that sees none of it.
        let mounts = "35 31 0:32 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let directory = PathBuf::from("/sys/fs/cgroup/");
        for path in ["/docker/x", "/../../elsewhere", "/"] {
            let expected = [Group { directory: directory.clone(), names: &V2 }];
            assert_eq!(groups(mounts, &format!("0::{path}")), expected, "{path}");
        }
        assert_eq!(groups("", "0::/\nnonsense\n"), []);
    }

    #[test]
    fn a_group_tells_what_it_has_left() {
        let directory = std::env::temp_dir().join(format!("elver-room-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        let v1 = Group { directory: directory.clone(), names: &V1 };
        let v2 = Group { directory: directory.clone(), names: &V2 };
        write("memory.max", "max\n");
        write("memory.current", "600\n");
        assert_eq!((v1.room(), v2.room()), (None, None));
        write("memory.max", "1000\n");
        assert_eq!(v2.room(), Some(400));
        write("memory.stat", "anon 1\ninactive_file 100\ntotal_inactive_file 200\n");
        assert_eq!(v2.room(), Some(500));
        write("memory.limit_in_bytes", "500\n");
        write("memory.usage_in_bytes", "900\n");
        assert_eq!(v1.room(), Some(0));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
