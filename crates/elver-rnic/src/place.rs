/// A checked place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: u32,
    pub(crate) offset: u64,
}

/// Why an access was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Key, protection domain, range or rights, or the memory is gone.
    Access,
    /// Of a copy from one region to another: the one that is read does not give its bytes.
    Source,
    /// It must wait: see [`crate::aside`].
    Later,
}
