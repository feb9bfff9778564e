use bitflags::bitflags;

bitflags! {
    /// What an MR, a memory window or a queue pair permits (IBTA vol. 1, 10.6.3.1).
    ///
    /// The bits are those of `enum ibv_access_flags`. Local read is always permitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write the region on behalf of its owner: receives, READ responses.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics on 8-byte aligned words.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero instead of from the virtual address.
        const ZERO_BASED = 1 << 5;
    }
}

impl AccessFlags {
    /// The flags that let a peer change memory; each needs [`AccessFlags::LOCAL_WRITE`] as well
    /// (IBTA vol. 1, 10.6.3.1).
    pub const REMOTE_CHANGES: AccessFlags =
        AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC);
}
