//! Which WRs a queue pair never takes. A provider says so by the value that its post returns, which the kernel's refusal of
//! a child's doorbell hides.

use std::ffi::c_int;

use super::verbs::{ATOMICS, BIND_MW, INLINE, Limits, SendWr};

impl Limits {
    /// Whether a WR that was refused would be so at any time, as rxe's `validate_send_wr` has it. Else the queue was full.
    ///
    /// # Safety
    /// A WR as ibv_post_send(3) has it.
    pub(crate) unsafe fn exclude(self, wr: *const SendWr) -> bool {
        // SAFETY: by the caller's promise.
        let wr = unsafe { &*wr };
        if wr.num_sge > self.sges as c_int {
            return true;
        }
        let sges = usize::try_from(wr.num_sge).unwrap_or(0);
        // SAFETY: there are so many, by the caller's promise.
        let lengths = (0..sges).map(|at| unsafe { u64::from((*wr.sg_list.add(at)).length) });
        let length: u64 = lengths.sum();
        let is_atomic = ATOMICS.contains(&wr.opcode);
        is_atomic && (length < 8 || !wr.remote_addr.is_multiple_of(8))
            || wr.flags & INLINE != 0 && length > u64::from(self.inline_bytes)
            || wr.opcode == BIND_MW && (sges != 0 || wr.immediate != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::verbs::Sge;
    use super::*;

    #[test]
    fn what_can_never_be_posted_is_told_from_what_has_no_room_now() {
        let limits = Limits { sges: 2, inline_bytes: 16 };
        let sges = [Sge { addr: 0, length: 8, lkey: 0 }; 3];
        let wr = |opcode, num_sge, flags, remote_addr| {
            let mut wr = SendWr::of(sges.as_ptr());
            (wr.opcode, wr.num_sge, wr.flags, wr.remote_addr) =
                (opcode, num_sge, flags, remote_addr);
            wr
        };
        // SAFETY: each has as many as it says.
        let excluded = |wr: SendWr| unsafe { limits.exclude(&raw const wr) };
        for good in [wr(0, 0, 0, 0), wr(0, 2, INLINE, 3), wr(5, 1, 0, 64), wr(BIND_MW, 0, 0, 0)] {
            assert!(!excluded(good));
        }
        assert!(excluded(wr(0, 3, 0, 0)), "more SGEs than it has");
        assert!(excluded(wr(5, 1, 0, 4)) && excluded(wr(6, 0, 0, 8)), "atomics on 8 bytes");
        assert!(excluded(wr(BIND_MW, 1, 0, 0)));
        let (short, long) = (Limits { inline_bytes: 15, ..limits }, wr(0, 2, INLINE, 0));
        // SAFETY: as above.
        let is_long = unsafe { short.exclude(&raw const long) };
        assert!(is_long, "more inline bytes than it takes");
    }
}
