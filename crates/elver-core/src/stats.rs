use elver_verbs::Gid;

/// Counters of a core, by name. Each only grows, but for the gauges at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// `qconnect`s that found an RC QP.
    pub connects_rc: u64,
    /// `qconnect`s that found the metadata in the DCCache.
    pub connects_cached: u64,
    /// `qconnect`s that asked a meta server.
    pub connects_looked_up: u64,
    /// `qconnect`s that failed.
    pub connects_failed: u64,
}

/// A peer node as this one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its GID.
    pub gid: Gid,
    /// VQPs connected to it.
    pub vqps: u32,
    /// RC QPs to it that are connected.
    pub rc_qps: u32,
    /// Operations posted to it so far.
    pub ops: u64,
    /// Bytes of these.
    pub bytes: u64,
}
