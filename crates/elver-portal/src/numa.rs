//! NUMA nodes: which there are, which one this thread runs at, and memory files whose pages lie at one.
//!
//! Where pages lie is a wish. A system without NUMA, a container that may not say (`EPERM`, `ENOSYS`) or whose set of
//! nodes has another one (`EINVAL`) has memory all the same, elsewhere.

use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags};

/// Nodes have numbers below this: Linux is built for no more.
pub const NODES_MAX: u16 = 1024;
/// Of the system's list of nodes as much is read: all of them, each by itself.
const LIST_BYTES_MAX: u64 = 8 << 10;

/// The nodes that have memory, in order; empty where the system tells of none. The system is asked once.
pub fn nodes() -> &'static [u16] {
    static NODES: OnceLock<Vec<u16>> = OnceLock::new();
    NODES.get_or_init(|| {
        let mut text = String::new();
        let read = File::open("/sys/devices/system/node/has_memory")
            .and_then(|file| file.take(LIST_BYTES_MAX).read_to_string(&mut text));
        read.ok().and_then(|_| parse(&text)).unwrap_or_default()
    })
}

/// The node of the CPU that this thread runs on now.
pub fn here() -> Option<u16> {
    let (mut cpu, mut node) = (0_u32, 0_u32);
    // SAFETY: the call writes two numbers, for which there is room, and nothing where a null pointer stands.
    let result = unsafe {
        libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, std::ptr::null_mut::<u8>())
    };
    if result == 0 { u16::try_from(node).ok() } else { None }
}

/// Has the pages of a file in memory, small ones, that are made from now on lie at a node, as long as that one has some left. `len`
/// are its bytes, whole pages. The wish belongs to the file: whoever has it mapped makes pages so.
///
/// # Errors
///
/// What the system said: it knows no such node, the process may not use it, or may not say where pages lie. The file is as before.
pub fn prefer(file: BorrowedFd<'_>, len: u64, node: u16) -> io::Result<()> {
    let mask = mask(node).ok_or(io::ErrorKind::InvalidInput)?;
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The call takes memory, and no file.
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice touches no memory that is in use.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::empty(), flags, file, 0) }?;
    // SAFETY: the pages are those that were just mapped; the call reads as many bits as the mask has.
    let said = result(unsafe {
        libc::syscall(libc::SYS_mbind, start, len, libc::MPOL_PREFERRED, mask.as_ptr(), BITS, 0)
    });
    // SAFETY: the mapping is ours, of this length, and nobody else knows of it.
    let _ = unsafe { rustix::mm::munmap(start, len) };
    said
}

/// Does something while all pages that this thread has made are to lie at a node, as long as that one has some left. Also
/// whether the system took that wish. For files of huge pages, of which Linux keeps no wish ([`prefer`]).
pub fn preferring<T>(node: u16, does: impl FnOnce() -> T) -> (T, bool) {
    let wish = mask(node).and_then(|mask| Policy { mode: libc::MPOL_PREFERRED, mask }.begin());
    let done = does();
    (done, wish.is_some())
}

/// Where a thread's pages lie.
#[derive(Clone, Copy)]
struct Policy {
    mode: libc::c_int,
    mask: Mask,
}

/// A thread's policy is another one while this is there; it stays with its thread.
struct Restored(Policy, PhantomData<*const ()>);

impl Policy {
    /// Makes it this thread's, if the system lets it.
    fn begin(self) -> Option<Restored> {
        let mut before = Policy { mode: libc::MPOL_DEFAULT, mask: Mask::default() };
        let Policy { mode, mask } = &mut before;
        // SAFETY: the call writes a number, and as many bits as the mask has; it is given no address to look at.
        let told = result(unsafe {
            let mode = std::ptr::from_mut(mode);
            libc::syscall(libc::SYS_get_mempolicy, mode, mask.as_mut_ptr(), BITS, 0_usize, 0_usize)
        });
        told.and_then(|()| self.set()).ok().map(|()| Restored(before, PhantomData))
    }

    fn set(&self) -> io::Result<()> {
        // SAFETY: the call reads as many bits as the mask has.
        result(unsafe {
            libc::syscall(libc::SYS_set_mempolicy, self.mode, self.mask.as_ptr(), BITS)
        })
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // The thread's set of nodes may be another one by now: then it has no wish at all, and not one client's.
        let none = Policy { mode: libc::MPOL_DEFAULT, mask: Mask::default() };
        let _ = self.0.set().or_else(|_| none.set());
    }
}

fn result(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the kernel is told of a mask's bits: it looks at one less.
const BITS: libc::c_ulong = NODES_MAX as libc::c_ulong + 1;
type Mask = [libc::c_ulong; (NODES_MAX / MASK_BITS) as usize];
const MASK_BITS: u16 = libc::c_ulong::BITS as u16;

/// A node among all.
fn mask(node: u16) -> Option<Mask> {
    let mut mask = Mask::default();
    *mask.get_mut(usize::from(node / MASK_BITS))? = 1 << (node % MASK_BITS);
    Some(mask)
}

/// A list such as `0-1,4`; nothing if it is none.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut nodes = Vec::new();
    for piece in list.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        let is_next = nodes.last().is_none_or(|before| *before < first);
        if !is_next || first > last || last >= NODES_MAX {
            return None;
        }
        nodes.extend(first..=last);
    }
    Some(nodes)
}

#[cfg(all(test, not(loom)))]
mod tests;
