//! Every count of the RC QPs against what it counts, for those who test.

use alloc::format;
use alloc::string::String;

use super::{LEASED, META_LINKS_MAX, READERS_MAX, RcPool, kind};
use crate::TransferConfig;
use crate::rc::link::{Purpose, RcLink};

impl RcPool {
    /// Counts them anew, for [`crate::Core::audit`].
    pub(crate) fn audit(&self) -> Result<(), String> {
        let of = |which: &dyn Fn(&RcLink) -> u32| -> u32 {
            self.links.iter().map(|(_, link)| which(link)).sum()
        };
        let leased = |link: &RcLink| matches!(link.purpose, Purpose::Leased(Some(_)));
        let found = [
            of(&|link| u32::from(link.purpose == Purpose::Pool)),
            of(&|link| u32::from(link.purpose == Purpose::Meta)),
            of(&|link| u32::from(link.purpose == Purpose::Reader)),
            of(&|link| if leased(link) { link.depth } else { 0 }),
            of(&|link| u32::from(link.purpose == Purpose::Leased(None))),
            of(&|link| u32::from(leased(link))),
            of(&|link| u32::from(leased(link) && link.is_ending())),
        ];
        let RcPool { pooled, meta, readers, leased_wrs, ends, leases, leases_ending, .. } = *self;
        let counted = [pooled, meta, readers, leased_wrs, ends, leases, leases_ending];
        if found != counted {
            return Err(format!("RC QPs by purpose: {found:?}, counted as {counted:?}"));
        }
        let TransferConfig { rc_qps_max, leased_wrs_max, .. } = self.config;
        let most = [rc_qps_max, META_LINKS_MAX, READERS_MAX, leased_wrs_max];
        if found.iter().zip(most).any(|(found, most)| *found > most) {
            return Err(format!("RC QPs by purpose: {found:?}, at most {most:?}"));
        }
        for (id, link) in self.links.iter() {
            let key = (link.peer, kind(link.purpose, link.class), id);
            let right = self.by_qpn(link.qpn) == Some(id)
                && self.by_qp.get(&link.qp) == Some(&id)
                && link.lane.is_none_or(|lane| self.by_lane(lane) == Some(id))
                && self.shared.contains(&id) == (key.1 < LEASED)
                && self.by_peer.contains(&key);
            if !right {
                return Err(format!("RC QP {:#x} is not found by what it is", link.qpn));
            }
        }
        let lanes = of(&|link| u32::from(link.lane.is_some())) as usize;
        let of_peers: u32 = self.ends_of.values().sum();
        let all = self.links.len() as usize;
        let found = [all, all, all, lanes, (pooled + meta) as usize, ends as usize];
        let listed = [
            self.by_qpn.len(),
            self.by_qp.len(),
            self.by_peer.len(),
            self.by_lane.len(),
            self.shared.len(),
            of_peers as usize,
        ];
        if found != listed {
            return Err(format!("RC QPs: {found:?}, listed as {listed:?}"));
        }
        Ok(())
    }
}
