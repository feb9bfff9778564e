use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// What a guest has beside processors.
pub struct Devices {
    pub memory_mb: u32,
    /// NUMA nodes that processors and memory are in, where the engine has such.
    pub numa_nodes: usize,
    pub mtu: u32,
    /// The guest's ends of the line to the runner and of the control channel; without them, the terminal.
    pub lines: Option<(OwnedFd, OwnedFd)>,
    pub network: Network,
    /// A directory of the host that the guest sees as /job.
    pub share: Option<PathBuf>,
}

pub enum Network {
    None,
    /// A datagram socket that carries Ethernet frames.
    Frames(OwnedFd),
    /// A tap device of this network namespace.
    Tap(String),
}
