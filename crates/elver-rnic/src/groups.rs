use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

/// The multicast groups that QPs are attached to, and these QPs, in the order in which they were attached.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) members: BTreeMap<IpAddr, Vec<u32>>,
}

impl Groups {
    /// In how many groups a QP is.
    pub(crate) fn of(&self, qp: u32) -> u32 {
        self.members.values().filter(|qps| qps.contains(&qp)).count() as u32
    }
}
