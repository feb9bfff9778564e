//! Memory of other processes, and files shared with them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use elver_soft::{
    Copier, MapError, ProcessMemory, Reservation, SoftConfig, SoftDevice, SoftMemory,
};
use elver_verbs::{AccessFlags, Device, Memory, MemoryError, VerbsError};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

const PAGE: u64 = 4096;

fn pidfd(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// A process of this user's.
fn open(pid: Pid, pidfd: &OwnedFd) -> Result<ProcessMemory, MapError> {
    ProcessMemory::open(pid, rustix::process::geteuid().as_raw(), pidfd)
}

/// The same, as a node sees one that it does not trust.
fn guarded(pid: Pid) -> ProcessMemory {
    let uid = rustix::process::geteuid().as_raw();
    ProcessMemory::guarded(pid, uid, pidfd(pid), Arc::new(Copier::default()), 7)
}

/// This process, as a node sees a client.
fn myself() -> Arc<ProcessMemory> {
    let pid = getpid();
    Arc::new(open(pid, &pidfd(pid)).unwrap())
}

/// A file of so many bytes; sealed, if it is to be mapped.
fn file(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// A process that lives until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Sleeper {
        let mut command = Command::new("cat");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Until it is another program, its memory is this one's.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Sleeper(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// The top of its stack.
    fn stack(&self) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let line = maps.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
        let (_, rest) = line.split_once('-').unwrap();
        let end = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
        end - PAGE
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_shared_file_is_the_same_memory_for_both() {
    let fd = file(3 * PAGE, SealFlags::SHRINK);
    let reservation = Reservation::new(3 * PAGE, 2 << 20).unwrap();
    assert_eq!(reservation.addr() % (2 << 20), 0);
    let addr = reservation.addr();
    let client = reservation.map_file(&fd, 3 * PAGE).unwrap();
    assert_eq!(client.base_addr(), addr);
    let node = SoftMemory::map_file(&fd, 3 * PAGE).unwrap();
    assert_eq!((node.size(), node.is_foreign()), (3 * PAGE, false));
    client.write(PAGE - 3, b"across pages").unwrap();
    let mut bytes = [0; 12];
    node.read(PAGE - 3, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across pages");
    assert_eq!(node.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(client.read_u64(8).unwrap(), 5);
}

#[test]
fn a_file_that_may_shrink_or_is_too_short_is_refused() {
    for (fd, len) in [
        (file(PAGE, SealFlags::empty()), PAGE),
        (file(PAGE, SealFlags::SHRINK), PAGE + 1),
        (file(PAGE, SealFlags::SHRINK), 0),
    ] {
        assert!(matches!(SoftMemory::map_file(&fd, len), Err(MapError::Map { .. })));
    }
    let small = Reservation::new(PAGE, PAGE).unwrap();
    assert!(small.map_file(file(2 * PAGE, SealFlags::SHRINK), 2 * PAGE).is_err());
}

#[test]
fn a_process_s_memory_is_read_and_written() {
    let own = SoftMemory::alloc(10 * PAGE).unwrap();
    let foreign = SoftMemory::of_process(myself(), own.base_addr(), own.size()).unwrap();
    assert!(foreign.is_foreign());
    assert_eq!((foreign.base_addr(), foreign.size()), (own.base_addr(), own.size()));
    let data: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
    foreign.write(5, &data).unwrap();
    let mut read = vec![0; data.len()];
    own.read(5, &mut read).unwrap();
    assert_eq!(read, data);
    foreign.write_u64(16, 77).unwrap();
    assert_eq!((own.read_u64(16).unwrap(), foreign.read_u64(16).unwrap()), (77, 77));

    let mixed = SoftMemory::alloc(10 * PAGE).unwrap();
    mixed.copy_from(3, &foreign, 5, 3 * PAGE).unwrap();
    foreign.copy_from(6 * PAGE, &mixed, 3, 3 * PAGE).unwrap();
    let (mut there, mut here) = (vec![0; 3 * PAGE as usize], vec![0; 3 * PAGE as usize]);
    own.read(6 * PAGE, &mut there).unwrap();
    mixed.read(3, &mut here).unwrap();
    assert_eq!(there, here);
}

#[test]
fn a_process_s_memory_has_bounds_and_no_atomics() {
    let own = SoftMemory::alloc(PAGE).unwrap();
    let foreign = SoftMemory::of_process(myself(), own.base_addr(), 100).unwrap();
    let out = MemoryError::OutOfRange { offset: 93, len: 8, size: 100 };
    assert_eq!(foreign.write(93, &[1; 8]), Err(out));
    assert_eq!(foreign.read(93, &mut [1; 8]), Err(out));
    assert!(foreign.read(u64::MAX, &mut [1]).is_err());
    assert!(foreign.copy_from(0, &own, PAGE - 1, 2).is_err());
    assert!(own.copy_from(0, &foreign, 99, 2).is_err());
    assert_eq!(foreign.fetch_add(0, 1), Err(MemoryError::NoAtomics));
    assert_eq!(foreign.compare_swap(0, 0, 1), Err(MemoryError::NoAtomics));

    let mut config = SoftConfig::for_address("127.0.94.1".parse().unwrap());
    config.publish = false;
    let mut device = SoftDevice::open(config).unwrap();
    let pd = device.alloc_pd().unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    assert!(device.reg_mr(pd, foreign.clone(), None, access).is_ok());
    let refused = device.reg_mr(pd, foreign, None, access | AccessFlags::REMOTE_ATOMIC);
    assert!(matches!(refused, Err(VerbsError::Unsupported { .. })), "{refused:?}");
}

#[test]
fn overlapping_pieces_are_copied_as_if_at_once() {
    const LEN: u64 = 100_000;
    let own = SoftMemory::alloc(2 * LEN).unwrap();
    let foreign = SoftMemory::of_process(myself(), own.base_addr(), own.size()).unwrap();
    let data: Vec<u8> = (0..LEN).map(|at| (at * 7 % 253) as u8).collect();
    for (to, from) in [(20_000, 0), (0, 20_000), (1, 0), (0, 1)] {
        own.write(from, &data).unwrap();
        foreign.copy_from(to, &foreign, from, LEN).unwrap();
        let mut copied = vec![0; LEN as usize];
        own.read(to, &mut copied).unwrap();
        assert!(copied == data, "from {from} to {to}");
    }
}

#[test]
fn what_is_not_mapped_is_refused_and_nothing_hangs() {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let pages = 3 * PAGE as usize;
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let start =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), pages, protection, flags) };
    let start = start.unwrap().cast::<u8>();
    // The middle page is one of a file that has none: nobody can touch it.
    let empty = file(0, SealFlags::empty());
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the page is ours, and nothing refers to it.
    unsafe {
        let middle = start.add(PAGE as usize).cast();
        rustix::mm::mmap(middle, PAGE as usize, protection, flags, empty.as_fd(), 0).unwrap();
    }
    let foreign = SoftMemory::of_process(myself(), start as u64, 3 * PAGE).unwrap();
    foreign.write(0, &[1; 4096]).unwrap();
    foreign.write(2 * PAGE, &[1; 4096]).unwrap();
    let gone = |offset, len| Err(MemoryError::Gone { offset, len });
    assert_eq!(foreign.write(PAGE - 10, &[2; 20]), gone(PAGE - 10, 20));
    assert_eq!(foreign.read(PAGE, &mut [0; 8]), gone(PAGE, 8));
    let own = SoftMemory::alloc(3 * PAGE).unwrap();
    assert_eq!(own.copy_from(0, &foreign, 0, 3 * PAGE), gone(0, 3 * PAGE));
    let refused = SoftMemory::of_process(myself(), start as u64, PAGE + 1);
    assert!(matches!(refused, Err(MapError::Process { .. })), "{refused:?}");
    let refused = SoftMemory::of_process(myself(), u64::MAX - 5, 10);
    assert!(matches!(refused, Err(MapError::Process { .. })), "{refused:?}");
}

#[test]
fn a_process_that_ended_is_out_of_reach() {
    let mut other = Sleeper::new();
    let (pid, handle) = (other.pid(), pidfd(other.pid()));
    let process = open(pid, &handle).unwrap();
    let memory = SoftMemory::of_process(Arc::new(process), other.stack(), 64).unwrap();
    let mut before = [0; 64];
    memory.read(0, &mut before).unwrap();
    memory.write(0, &before).unwrap();
    other.kill();
    let gone = Err(MemoryError::Gone { offset: 0, len: 64 });
    assert_eq!(memory.read(0, &mut before), gone);
    assert_eq!(memory.write(0, &before), gone);
    let error = open(pid, &handle).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn a_number_that_another_process_has_is_told() {
    let mut first = Sleeper::new();
    let handle = pidfd(first.pid());
    first.kill();
    let second = Sleeper::new();
    let error = open(second.pid(), &handle).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn a_process_of_another_user_is_refused() {
    let other = Sleeper::new();
    let uid = rustix::process::geteuid().as_raw() + 1;
    let error = ProcessMemory::open(other.pid(), uid, pidfd(other.pid())).unwrap_err().to_string();
    assert!(error.contains("CAP_SYS_PTRACE"), "{error}");
}

#[test]
fn a_revoked_process_is_out_of_reach() {
    let own = SoftMemory::alloc(PAGE).unwrap();
    let process = myself();
    let memory = SoftMemory::of_process(process.clone(), own.base_addr(), PAGE).unwrap();
    memory.write(0, &[1; 8]).unwrap();
    process.revoke();
    let gone = Err(MemoryError::Gone { offset: 0, len: 8 });
    assert_eq!(memory.write(0, &[2; 8]), gone);
    assert_eq!(own.read_u64(0).unwrap(), 0x0101_0101_0101_0101);
}

#[test]
fn writes_reach_the_file_that_is_mapped() {
    let fd = file(PAGE, SealFlags::SHRINK);
    let memory = SoftMemory::map_file(&fd, PAGE).unwrap();
    memory.write(100, b"seen").unwrap();
    let mut bytes = [0; 4];
    File::from(fd).read_exact_at(&mut bytes, 100).unwrap();
    assert_eq!(&bytes, b"seen");
}

#[test]
fn a_guarded_process_is_copied_all_the_same() {
    const LEN: usize = 200_000;
    let mut bytes: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
    let pid = getpid();
    let process = guarded(pid);
    let memory =
        SoftMemory::of_process(Arc::new(process), bytes.as_mut_ptr() as u64, LEN as u64).unwrap();
    let copy = SoftMemory::alloc(LEN as u64).unwrap();
    // Who cannot wait is told so.
    let at_once = copy.copy_from(1, &memory, 0, LEN as u64 - 1);
    assert_eq!(at_once, Err(MemoryError::Later));
    let mut read = vec![0; LEN];
    memory.read_waiting(0, &mut read[1..]).unwrap();
    memory.write_waiting(0, &read).unwrap();
    memory.read_waiting(0, &mut read).unwrap();
    assert_eq!((read[0], read[1], read[LEN - 1]), (0, 0, (LEN - 2) as u8));
    assert!(memory.read_waiting(1, &mut read).is_err());
    // Nothing is mapped there.
    let process = guarded(pid);
    assert!(SoftMemory::of_process(Arc::new(process), PAGE, 8).is_err());
}

/// Memory that nobody looked at when it was named: each access finds out.
#[test]
fn unseen_memory_is_looked_at_when_it_is_used() {
    let map = || {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE as usize, protection, flags)
        }
    };
    let at = map().unwrap();
    let whole = SoftMemory::of_process_unseen(myself(), 0, 1 << 47).unwrap();
    let page = SoftMemory::of_process_unseen(myself(), at as u64, PAGE).unwrap();
    whole.write(at as u64, b"abc").unwrap();
    let mut bytes = [0; 3];
    page.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    assert!(whole.read(0, &mut bytes).is_err(), "nothing is mapped at 0");
    assert!(page.read(PAGE - 2, &mut bytes).is_err(), "beyond its end");
    assert_eq!(page.fetch_add(0, 1), Err(MemoryError::NoAtomics));
    // SAFETY: the mapping is this test's, and nobody holds references to it.
    unsafe { rustix::mm::munmap(at, PAGE as usize) }.unwrap();
    for (addr, len) in [(0, 0), (1, u64::MAX), (i64::MAX as u64, 1)] {
        assert!(SoftMemory::of_process_unseen(myself(), addr, len).is_err(), "{addr:#x} {len}");
    }
}
