//! What `elver status` says of sessions, and of those who have them.

use elver_core::Core;
use elver_soft::SoftDevice;
use rustc_hash::FxHashMap;
use rustix::process::Pid;

use super::super::account::Account;
use super::super::quota::Holding;
use super::super::session::Session;
use super::Sessions;
use crate::status::{SessionStatus, UserStatus};

impl Sessions {
    /// All that have begun, as `elver status` shows them.
    pub(in crate::engine) fn describe(&self, core: &Core<SoftDevice>) -> Vec<SessionStatus> {
        let describe = |session: &Option<Session>| {
            let session = session.as_ref()?;
            let open = session.open.as_ref()?;
            let usage = open.usage();
            let direct = open.gate.as_ref().map(|gate| (gate.end.counts(), gate.regions().count()));
            let (counts, reached) = direct.unwrap_or_default();
            Some(SessionStatus {
                direct_reads: counts.reads,
                direct_writes: counts.writes,
                direct_bytes: counts.bytes,
                regions_reached: reached as u32,
                client: open.client.0,
                pid: Pid::as_raw(session.peer.pid),
                uid: session.peer.uid,
                vqps: core.vqps_of(open.client),
                mrs: usage.mrs,
                bytes: usage.bytes,
                active: open.active,
            })
        };
        self.slots.iter().filter_map(describe).collect()
    }

    /// What each user has.
    pub(in crate::engine) fn users(&self) -> Vec<UserStatus> {
        let mut wrs = FxHashMap::<Account, u64>::default();
        for session in self.slots.iter().flatten() {
            let taken = session.open.as_ref().map_or(0, |open| open.wrs);
            *wrs.entry(session.account()).or_default() += taken;
        }
        let describe = |(account, holding): (Account, &Holding)| UserStatus {
            uid: account.uid,
            space: account.space,
            trusted: account.is_root,
            sessions: holding.usage.sessions,
            vqps: holding.usage.vqps,
            ports: holding.usage.ports,
            mrs: holding.usage.mrs,
            bytes: holding.usage.bytes,
            leased_wrs: holding.usage.leased_wrs,
            wrs: holding.wrs + wrs.get(&account).copied().unwrap_or(0),
        };
        let mut users: Vec<_> = self.quotas.accounts().map(describe).collect();
        users.sort_by_key(|user| (user.uid, user.space, !user.trusted));
        users
    }
}
