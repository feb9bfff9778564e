//! WRs that move more than one system call is to: between two the device is seen to, so that its peers are answered, and who
//! takes something back waits for one call at most.

use elver_verbs::{Device as _, Payload, SendWr};

use super::{MOST, Peer, Run, Stage, Staged, granted, wanted};

/// How often the device is seen to between two such calls, at most, as long as it has work.
const BURSTS: u32 = 64;

/// Leaves out the first bytes of a piece.
fn skip(piece: &mut libc::iovec, bytes: usize) {
    piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(bytes).cast();
    piece.iov_len -= bytes;
}

impl Run<'_> {
    /// Sees to the device between two calls that move much, and lets go on who takes something back. What the peer tells may
    /// be another thing then.
    #[cold]
    pub(super) fn breathe(&mut self) {
        self.inside = None;
        let mut bursts = 0;
        while bursts < BURSTS && self.device.progress() {
            bursts += 1;
        }
        self.inside = Some(self.link.hub.table.enter());
        self.door = self.link.door();
        self.moved = 0;
    }

    /// Moves the bytes of a WR that is there alone, by several calls; returns how many were. In between the peer may have taken
    /// back what it reaches for, and the QP may have failed.
    #[cold]
    pub(super) fn run_alone(&mut self) -> u64 {
        let Some(Staged { wr_id, op, flags, length, end, .. }) = self.stage.wrs.first() else {
            return 0;
        };
        let (wr_id, op, flags, length, end) = (*wr_id, *op, *flags, *length, *end);
        let Some((remote, access)) = wanted(&op) else { return 0 };
        let address = granted(self.door.as_ref(), self.link, remote, length, access);
        let mut moved = 0;
        loop {
            let part = MOST.min(u64::from(length) - moved);
            let now = self.stage.run_part(&self.link.peer, part as usize);
            moved += now;
            if now < part || moved == length.into() {
                return moved;
            }
            self.breathe();
            let payload = Payload::Sges(&self.stage.sges[..end]);
            let wr = SendWr { wr_id, op, flags, payload, dest: None };
            let stands = self.device.check_direct(self.qp, &wr, 0, |_, _, _| true).is_some();
            if !stands || granted(self.door.as_ref(), self.link, remote, length, access) != address
            {
                return moved;
            }
        }
    }
}

impl Stage {
    /// Moves the next bytes of a WR that is there alone, so many at most; returns how many were. These are there no more.
    fn run_part(&mut self, peer: &Peer, most: usize) -> u64 {
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
}
