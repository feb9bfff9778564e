//! Memory that a process gives back, and that the node then has to have: of a control group with a
//! limit, and of huge pages. Each test alone, since both are the machine's.

use std::os::fd::AsRawFd;
use std::ptr;

use crate::common::daemon::{Daemon, Directory, Witness, toml};
use crate::common::{Client, Region, engine_counter, free_address, gid, wait_for};
use elver_portal::RefusalCode;
use elver_testkit::is_root;
use elver_verbs::{Memory, RemoteAddr, WcStatus};
use rustix::fs::FallocateFlags;

const HUGE: u64 = 2 << 20;
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Makes a hole of all of a file.
fn punch(file: &impl AsRawFd, bytes: u64) {
    // SAFETY: the descriptor is open while the file lives.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(file.as_raw_fd()) };
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, 0, bytes).unwrap();
}

/// Reads a region's first bytes over its own node.
fn read(witness: &mut Witness, of: &Region) -> WcStatus {
    let remote = RemoteAddr { addr: of.addr, rkey: of.rkey };
    witness.client.read(witness.vqp, &witness.region, 0, 8, remote);
    witness.client.completion().status
}

/// What was given back seemed to be room for more, until somebody touched all of it: then the node had
/// more than its container may have, and was killed.
#[test]
fn memory_that_was_given_back_is_room_for_nobody_else() {
    const LIMIT: u64 = 256 << 20;
    const PIECE: u64 = 16 << 20;
    let Some(group) = crate::common::group::Group::new(LIMIT) else {
        return println!("skipped: no control group with a limit of memory can be made here");
    };
    let directory = Directory::alone();
    let config = toml(&free_address(), &directory.path.join("a.sock"), "");
    let config = directory.file("a.toml", &config);
    let daemon = Daemon::run(group.elverd(&config));
    let mut witness = Witness::new(&daemon);
    let mut reader = Client::connect(&daemon.socket).unwrap();
    let buffer = reader.alloc(1 << 20).unwrap();
    let vqp = reader.create();
    reader.qconnect(vqp, gid(&daemon.address), 0).unwrap();
    let mut greedy = Client::connect(&daemon.socket).unwrap();
    let mut held = Vec::new();
    let refused = loop {
        assert!((held.len() as u64) < LIMIT / PIECE, "it got more than there is");
        match greedy.alloc_file(PIECE, false) {
            Ok((region, file, bytes)) => {
                punch(&file, bytes);
                held.push((region, file));
            }
            Err((code, _)) => break code,
        }
    };
    assert_eq!(refused, RefusalCode::NoMemory);
    assert!(held.len() > 4, "it got {} pieces", held.len());
    // All that was promised is there.
    for (region, _) in &held {
        for at in (0..PIECE).step_by(1 << 20) {
            let remote = RemoteAddr { addr: region.addr + at, rkey: region.rkey };
            reader.read(vqp, &buffer, 0, 1 << 20, remote);
            assert_eq!(reader.completion().status, WcStatus::Success);
        }
    }
    witness.works();
}

/// Huge pages of this machine, given back as they were.
struct HugePages(u64);

impl HugePages {
    fn set_aside(count: u64) -> Option<HugePages> {
        let read = || std::fs::read_to_string(HUGE_PAGES).ok()?.trim().parse::<u64>().ok();
        let pages = HugePages(read()?);
        std::fs::write(HUGE_PAGES, (pages.0 + count).to_string()).ok()?;
        (read()? == pages.0 + count).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HUGE_PAGES, self.0.to_string());
    }
}

/// Huge pages that are mapped.
struct Taken(Vec<*mut libc::c_void>);

impl Drop for Taken {
    fn drop(&mut self) {
        for page in &self.0 {
            // SAFETY: a mapping of ours, which nothing points into.
            unsafe { libc::munmap(*page, HUGE as usize) };
        }
    }
}

/// Takes every huge page that is free.
fn take_huge_pages() -> Taken {
    let mut taken = Taken(Vec::new());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    loop {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                HUGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return taken;
        }
        taken.0.push(page);
    }
}

/// The daemon was ended by SIGBUS.
#[test]
fn a_huge_page_that_was_given_back_ends_its_session_alone() {
    if !is_root() {
        return println!("skipped: only the trusted get huge pages");
    }
    let directory = Directory::alone();
    let Some(_pages) = HugePages::set_aside(2) else {
        return println!("skipped: no huge pages can be set aside here");
    };
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    let mut careless = Client::connect(&daemon.socket).unwrap();
    let (region, file, bytes) = careless.alloc_file(HUGE, true).unwrap();
    if rustix::fs::fstatfs(&file).unwrap().f_bsize as u64 != HUGE {
        return println!("skipped: another took the huge pages that were set aside");
    }
    region.memory.write(0, b"precious").unwrap();
    assert_eq!(read(&mut witness, &region), WcStatus::Success);
    punch(&file, bytes);
    let _taken = take_huge_pages();
    // What it reads are zeros, or nothing.
    read(&mut witness, &region);
    careless.ended();
    let lost = || engine_counter(&daemon.status(), "sessions_lost_memory");
    wait_for("the session to be counted", || (lost() == 1).then_some(()));
    Witness::new(&daemon).works();
}
