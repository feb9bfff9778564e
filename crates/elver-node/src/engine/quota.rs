use elver_portal::RefusalCode;
use rustc_hash::FxHashMap;

use super::translate::Refused;
use crate::config::QuotaConfig;

/// What the processes of each user have, against what they may have.
#[derive(Debug)]
pub(super) struct Quotas {
    config: QuotaConfig,
    users: FxHashMap<u32, Usage>,
}

/// What a user, or a part of a user's, has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) sessions: u32,
    pub(super) vqps: u32,
    pub(super) mrs: u32,
    pub(super) bytes: u64,
}

impl Usage {
    pub(super) const SESSION: Usage = Usage { sessions: 1, vqps: 0, mrs: 0, bytes: 0 };
    pub(super) const VQP: Usage = Usage { sessions: 0, vqps: 1, mrs: 0, bytes: 0 };

    pub(super) fn region(bytes: u64) -> Usage {
        Usage { mrs: 1, bytes, ..Usage::default() }
    }

    fn plus(self, other: Usage) -> Usage {
        Usage {
            sessions: self.sessions.saturating_add(other.sessions),
            vqps: self.vqps.saturating_add(other.vqps),
            mrs: self.mrs.saturating_add(other.mrs),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Usage) -> Usage {
        Usage {
            sessions: self.sessions.saturating_sub(other.sessions),
            vqps: self.vqps.saturating_sub(other.vqps),
            mrs: self.mrs.saturating_sub(other.mrs),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl Quotas {
    pub(super) fn new(config: QuotaConfig) -> Quotas {
        Quotas { config, users: FxHashMap::default() }
    }

    /// Takes some of a user's quota, or says what there is too much of.
    pub(super) fn take(&mut self, uid: u32, more: Usage) -> Result<(), Refused> {
        let has = self.users.get(&uid).copied().unwrap_or_default();
        let will = has.plus(more);
        // Root could raise its own.
        if uid != 0 {
            let config = &self.config;
            for (what, setting, has, will, limit) in [
                (
                    "sessions",
                    "sessions",
                    has.sessions.into(),
                    will.sessions.into(),
                    config.sessions.into(),
                ),
                ("VQPs", "vqps", has.vqps.into(), will.vqps.into(), config.vqps.into()),
                ("memory regions", "mrs", has.mrs.into(), will.mrs.into(), config.mrs.into()),
                ("bytes of memory", "bytes", has.bytes, will.bytes, config.bytes),
            ] {
                // Of what others gave it a user may have too much already.
                if will > has && will > limit {
                    return Err(Refused::new(
                        RefusalCode::Limit,
                        format!(
                            "user {uid} would have {will} {what}, and {limit} are allowed; release \
                             some or raise `quota.{setting}` of elverd"
                        ),
                    ));
                }
            }
        }
        self.users.insert(uid, will);
        Ok(())
    }

    /// Counts what others gave a user: VQPs that its processes accepted.
    pub(super) fn count(&mut self, uid: u32, more: Usage) {
        let has = self.users.entry(uid).or_default();
        *has = has.plus(more);
    }

    /// Sessions that a user has.
    pub(super) fn sessions(&self, uid: u32) -> u32 {
        self.users.get(&uid).map_or(0, |usage| usage.sessions)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, uid: u32, less: Usage) {
        let Some(has) = self.users.get_mut(&uid) else { return };
        *has = has.minus(less);
        if *has == Usage::default() {
            self.users.remove(&uid);
        }
    }

    /// What each user has.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, &Usage)> {
        self.users.iter().map(|(uid, usage)| (*uid, usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_quota_of_its_own_and_root_none() {
        let config = QuotaConfig { vqps: 2, bytes: 100, ..QuotaConfig::default() };
        let mut quotas = Quotas::new(config);
        for uid in [1000, 1001] {
            quotas.take(uid, Usage::VQP).unwrap();
            quotas.take(uid, Usage::VQP).unwrap();
            let refused = quotas.take(uid, Usage::VQP).unwrap_err();
            assert!(refused.text.contains("quota.vqps"), "{}", refused.text);
        }
        assert!(quotas.take(1000, Usage::region(101)).is_err());
        quotas.take(1000, Usage::region(100)).unwrap();
        assert!(quotas.take(1000, Usage::region(1)).is_err());
        quotas.give_back(1000, Usage::region(100));
        quotas.take(1000, Usage::region(1)).unwrap();
        for _ in 0..5 {
            quotas.take(0, Usage::VQP).unwrap();
        }
    }

    #[test]
    fn accepted_vqps_count_and_keep_nothing_else_from_a_user() {
        let config = QuotaConfig { vqps: 2, ..QuotaConfig::default() };
        let mut quotas = Quotas::new(config);
        quotas.take(7, Usage::VQP).unwrap();
        for _ in 0..2 {
            quotas.count(7, Usage::VQP);
        }
        assert!(quotas.take(7, Usage::VQP).is_err());
        quotas.take(7, Usage::SESSION).unwrap();
        for _ in 0..2 {
            quotas.give_back(7, Usage::VQP);
        }
        quotas.take(7, Usage::VQP).unwrap();
    }

    #[test]
    fn a_user_with_nothing_is_forgotten() {
        let mut quotas = Quotas::new(QuotaConfig::default());
        quotas.take(7, Usage::SESSION).unwrap();
        assert_eq!(quotas.users().count(), 1);
        quotas.give_back(7, Usage::SESSION);
        assert_eq!(quotas.users().count(), 0);
    }
}
