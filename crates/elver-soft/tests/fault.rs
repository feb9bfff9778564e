//! Memory that goes away under the device: the process that has it mapped lives on.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::ptr;

use elver_soft::fault::{Shared, faults, survive_faults};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4_096;
/// Set in a process that is to end by a signal.
const ROLE: &str = "ELVER_TEST_FAULT";

/// A file, mapped, that this process can make shorter.
fn mapped(pages: usize) -> (OwnedFd, *mut u8) {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, (pages * PAGE) as u64).unwrap();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
    let start =
        unsafe { rustix::mm::mmap(ptr::null_mut(), pages * PAGE, protection, flags, &file, 0) };
    (file, start.unwrap().cast())
}

/// The access ended the process, and with it all others that it served.
#[test]
fn a_page_that_cannot_be_had_is_zeros_and_its_mapping_lost() {
    survive_faults().unwrap();
    let before = faults();
    let (file, start) = mapped(4);
    let (_other, beside) = mapped(4);
    // SAFETY: the mappings are whole, hold nothing, and stay.
    let (one, two) = unsafe {
        (
            Shared::new(start as usize, 4 * PAGE).unwrap(),
            Shared::new(beside as usize, 4 * PAGE).unwrap(),
        )
    };
    // SAFETY: both are mapped, whatever becomes of the pages.
    unsafe {
        start.write_volatile(7);
        start.add(3 * PAGE).write_volatile(7);
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!(start.add(3 * PAGE).read_volatile(), 0);
        start.add(PAGE).write_volatile(9);
        assert_eq!((start.read_volatile(), start.add(PAGE).read_volatile()), (0, 9));
        beside.write_volatile(7);
    }
    assert!(one.is_lost() && !two.is_lost());
    assert_eq!(faults(), before + 1);
    // Its place serves another.
    drop(one);
    let (_file, again) = mapped(1);
    // SAFETY: as above.
    let again = unsafe { Shared::new(again as usize, PAGE).unwrap() };
    assert!(!again.is_lost());
}

#[test]
fn a_fault_elsewhere_ends_the_process_all_the_same() {
    for role in ["fault", "sent"] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_that_faults", "--nocapture"])
            .env(ROLE, role)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let status = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{role}: {said}");
    }
}

/// Not a test of its own: a process that touches what is not there, and nobody knows of.
#[test]
fn process_that_faults() {
    let Ok(role) = std::env::var(ROLE) else { return };
    survive_faults().unwrap();
    if role == "sent" {
        // SAFETY: the signal is this process's own affair.
        unsafe { libc::raise(libc::SIGBUS) };
    } else {
        let (file, start) = mapped(1);
        rustix::fs::ftruncate(&file, 0).unwrap();
        // SAFETY: it is mapped, and the end of this process.
        unsafe { start.read_volatile() };
    }
    unreachable!("it ends by the signal");
}
