//! WRs that are executed by one system call, and the memory that it moves.

use elver_soft::now;
use elver_verbs::{SendFlags, SendOp, Sge};

use super::peer::Peer;

/// WRs that are executed by one system call, and pieces of memory, which it takes 1024 of.
pub(super) const WRS: usize = 64;
const PIECES: usize = 960;
/// SGEs of a WR, and one more piece that its end is cut into.
pub(super) const PIECES_A_WR: usize = 33;
/// Inline bytes of those WRs.
pub(super) const INLINE: usize = 16 << 10;
const WORD: usize = 8;
/// The least bytes of a WR that waits for what is on its way: copied twice and in packets, it takes longer.
pub(super) const LONG: u32 = 64 << 10;
/// The most bytes of long WRs that one system call moves: meanwhile the device answers nobody, and who takes something back
/// waits.
pub(super) const MOST: u64 = 8 << 20;

/// A WR that is to be executed, and may yet have to be posted.
pub(super) struct Staged {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) length: u32,
    /// Where in its memory the peer let it reach.
    pub(super) address: u64,
    /// Where its SGEs end, or its inline bytes.
    pub(super) inline: bool,
    pub(super) end: usize,
}

/// WRs that are executed together, and their memory: used again and again.
pub(crate) struct Stage {
    pub(super) wrs: Vec<Staged>,
    pub(super) sges: Vec<Sge>,
    pub(super) bytes: Vec<u8>,
    pub(super) local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
    pub(super) reads: bool,
    /// Bytes of those that are as long as [`LONG`].
    pub(super) long: u64,
}

// SAFETY: the pointers are followed by the kernel alone, while who posts them has them mapped.
unsafe impl Send for Stage {}

impl Default for Stage {
    fn default() -> Stage {
        Stage {
            wrs: Vec::with_capacity(WRS),
            sges: Vec::with_capacity(PIECES),
            bytes: Vec::with_capacity(INLINE),
            local: Vec::with_capacity(PIECES + PIECES_A_WR),
            remote: Vec::with_capacity(WRS),
            reads: false,
            long: 0,
        }
    }
}

impl Stage {
    /// Has the last word of a WRITE, which ends before this address, written for itself, behind all else: who
    /// waits for it finds the rest.
    pub(super) fn cut_end(&mut self, end: u64) {
        let Some(last) = self.local.last_mut() else { return };
        let tail = (end - 1) as usize % WORD + 1;
        if last.iov_len > tail {
            let head = last.iov_len - tail;
            last.iov_len = head;
            let start = last.iov_base.cast::<u8>().wrapping_add(head);
            self.local.push(piece(start, tail));
        }
    }

    /// What is at the other end, as one piece with what it follows.
    pub(super) fn reach(&mut self, address: u64, length: usize) {
        let address = address as usize;
        match self.remote.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) == address => {
                last.iov_len += length;
            }
            _ => {
                let iov_base = std::ptr::without_provenance_mut(address);
                self.remote.push(libc::iovec { iov_base, iov_len: length });
            }
        }
    }

    /// Moves the next bytes of a WR that is there alone, so many at most; returns how many were. These are there no more.
    pub(super) fn run_part(&mut self, peer: &Peer, most: usize) -> u64 {
        let Some(rest) = self.remote.first().map(|rest| rest.iov_len) else { return 0 };
        // The kernel ends where either side does.
        self.remote[0].iov_len = rest.min(most);
        let moved = self.run(peer);
        let mut left = moved as usize;
        self.remote[0].iov_len = rest;
        skip(&mut self.remote[0], left);
        self.local.retain_mut(|local| {
            let here = left.min(local.iov_len);
            skip(local, here);
            left -= here;
            local.iov_len > 0
        });
        moved
    }

    /// Moves the bytes; returns how many were.
    pub(super) fn run(&mut self, peer: &Peer) -> u64 {
        let Some(pid) = peer.pid(now()) else {
            peer.close();
            return 0;
        };
        let pid = pid.as_raw_nonzero().get();
        let (local, remote) = (self.local.as_ptr(), self.remote.as_ptr());
        let (locals, remotes) = (self.local.len() as u64, self.remote.len() as u64);
        // SAFETY: the local pieces are registered memory of the program's, which a device writes by the
        // verbs contract, or bytes of ours that are read; the kernel checks the peer's.
        let moved = unsafe {
            match self.reads {
                true => libc::process_vm_readv(pid, local, locals, remote, remotes, 0),
                false => libc::process_vm_writev(pid, local, locals, remote, remotes, 0),
            }
        };
        if moved < 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            if matches!(error, Some(libc::ESRCH | libc::EPERM | libc::ENOSYS)) {
                peer.close();
            }
        }
        u64::try_from(moved).unwrap_or(0)
    }

    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.bytes.clear();
        self.local.clear();
        self.remote.clear();
        self.long = 0;
    }
}

pub(super) fn piece(start: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: length }
}

/// Leaves out the first bytes of a piece.
fn skip(piece: &mut libc::iovec, bytes: usize) {
    piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(bytes).cast();
    piece.iov_len -= bytes;
}
