use elver_verbs::AccessFlags;

/// What a key opens to peers. It is checked by the same code whether the device executes a request or
/// the peer does so himself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The key.
    pub rkey: u32,
    /// The PD that it belongs to.
    pub pd: u32,
    /// Address of the first byte, as peers name it.
    pub base: u64,
    /// Bytes from there on.
    pub length: u64,
    /// What peers may do.
    pub access: AccessFlags,
}

impl Reach {
    /// Checks an access through a QP of `pd`; returns how many bytes behind the first one it begins.
    #[inline(always)]
    pub fn grants(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        length: u64,
        access: AccessFlags,
    ) -> Option<u64> {
        if self.pd == pd { self.opens(rkey, va, length, access) } else { None }
    }

    /// The same of a QP whose PD it is.
    #[inline(always)]
    pub(crate) fn opens(
        &self,
        rkey: u32,
        va: u64,
        length: u64,
        access: AccessFlags,
    ) -> Option<u64> {
        if self.rkey != rkey || !self.access.contains(access) {
            return None;
        }
        let first = va.checked_sub(self.base)?;
        first.checked_add(length).filter(|end| *end <= self.length).map(|_| first)
    }
}
