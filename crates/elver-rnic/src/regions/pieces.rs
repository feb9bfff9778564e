//! The pieces of a message that its SGEs name.

use elver_verbs::Sge;

/// `left` bytes of a message that begin `skip` bytes into what its SGEs name.
pub(super) struct Pieces<'a> {
    pub(super) sges: &'a [Sge],
    pub(super) skip: u32,
    pub(super) left: u32,
}

impl<'a> Pieces<'a> {
    /// The next piece: so many bytes of an SGE, from so many on.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<(&'a Sge, u32, u32)> {
        while self.left > 0 {
            let (sge, rest) = self.sges.split_first()?;
            self.sges = rest;
            if self.skip < sge.length {
                let skip = core::mem::take(&mut self.skip);
                let length = self.left.min(sge.length - skip);
                self.left -= length;
                return Some((sge, skip, length));
            }
            self.skip -= sge.length;
        }
        None
    }
}
