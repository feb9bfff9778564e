use std::collections::VecDeque;

use elver_core::{ClientId, VqpId};
use elver_portal::{Class, RefusalCode};
use rustc_hash::FxHashMap;

use super::account::{Account, Customer};
use super::translate::Refused;
use crate::config::{Classes, QuotaConfig};

/// Of what there is an account may have so many times the third power of the part that it leaves to
/// others. So the first has half at most, and the more is taken the less one gets: there is something
/// left for hundreds that come after the greediest, and whoever has none gets one while there is any.
const SHARE: u128 = 4;
/// What there is less of than this is not shared.
const SHARED_MIN: u64 = 64;
/// WRs of a leased queue pair of the usual depth: what there is less of than so many such is not shared.
pub(super) const LEASE_WRS: u32 = 144;
/// Of what is to be given back, as many are looked at in a round.
const PARTING_LOOKS: usize = 16;
/// Root has this part of the node's mappings, whatever others have.
const ROOTS_MAPPINGS_PART: u32 = 64;

/// What each account has, against what it may have.
#[derive(Debug)]
pub(super) struct Quotas {
    config: QuotaConfig,
    /// Which priority each may claim.
    pub(super) classes: Classes,
    /// What there is of all for all accounts; bytes are looked at where they are made.
    total: Usage,
    all: Usage,
    /// Connects that were refused a leased queue pair since their account leaves some to others.
    pub(super) leases_refused: u64,
    accounts: FxHashMap<Account, Holding>,
    /// What is given back when a VQP has gone.
    parting: VecDeque<((ClientId, VqpId), Account, Usage)>,
}

/// What an account has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) usage: Usage,
    /// WRs that were taken from its sessions that have ended.
    pub(super) wrs: u64,
}

/// What an account, or a part of one, has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) sessions: u32,
    pub(super) vqps: u32,
    pub(super) ports: u32,
    pub(super) mrs: u32,
    pub(super) bytes: u64,
    /// Mappings in the node's memory, of which the system lets a process have so many.
    pub(super) mappings: u32,
    /// Send WRs of leased queue pairs.
    pub(super) leased_wrs: u32,
}

impl Usage {
    pub(super) const NONE: Usage =
        Usage { sessions: 0, vqps: 0, ports: 0, mrs: 0, bytes: 0, mappings: 0, leased_wrs: 0 };
    /// With its rings, its arena, and its gate, which it may ask for.
    pub(super) const SESSION: Usage = Usage { sessions: 1, ..Usage::PLACE };
    /// What of a session is mapped.
    pub(super) const PLACE: Usage = Usage { mappings: 3, ..Usage::NONE };
    /// A process that is waited for, of which nothing is mapped.
    pub(super) const DESCRIPTOR: Usage = Usage { sessions: 1, ..Usage::NONE };
    pub(super) const VQP: Usage = Usage { vqps: 1, ..Usage::NONE };
    pub(super) const PORT: Usage = Usage { ports: 1, ..Usage::NONE };

    /// A region of so many bytes of the node's, in a file of its own; or of none.
    pub(super) fn region(bytes: u64) -> Usage {
        Usage { mrs: 1, bytes, mappings: (bytes > 0).into(), ..Usage::NONE }
    }

    /// A leased queue pair for so many WRs.
    pub(super) fn leased(wrs: u32) -> Usage {
        Usage { leased_wrs: wrs, ..Usage::NONE }
    }

    /// A session with VQPs, and perhaps a region.
    pub(super) fn heir(vqps: u32, has_region: bool) -> Usage {
        Usage { vqps, mrs: has_region.into(), ..Usage::SESSION }
    }

    /// So many of it.
    pub(super) fn times(self, count: u32) -> Usage {
        Usage {
            sessions: self.sessions.saturating_mul(count),
            vqps: self.vqps.saturating_mul(count),
            ports: self.ports.saturating_mul(count),
            mrs: self.mrs.saturating_mul(count),
            bytes: self.bytes.saturating_mul(count.into()),
            mappings: self.mappings.saturating_mul(count),
            leased_wrs: self.leased_wrs.saturating_mul(count),
        }
    }

    /// What of it memory takes.
    pub(super) fn of_memory(self) -> Usage {
        let Usage { mrs, bytes, mappings, .. } = self;
        Usage { mrs, bytes, mappings, ..Usage::NONE }
    }

    /// But for a session itself.
    pub(super) fn within_session(self) -> Usage {
        self.minus(Usage::SESSION)
    }

    /// The file of a set of sessions, of which the records are mapped.
    pub(super) fn file(bytes: u64) -> Usage {
        Usage { bytes, mappings: 1, ..Usage::NONE }
    }

    pub(super) fn plus(self, other: Usage) -> Usage {
        Usage {
            sessions: self.sessions.saturating_add(other.sessions),
            vqps: self.vqps.saturating_add(other.vqps),
            ports: self.ports.saturating_add(other.ports),
            mrs: self.mrs.saturating_add(other.mrs),
            bytes: self.bytes.saturating_add(other.bytes),
            mappings: self.mappings.saturating_add(other.mappings),
            leased_wrs: self.leased_wrs.saturating_add(other.leased_wrs),
        }
    }

    pub(super) fn minus(self, other: Usage) -> Usage {
        Usage {
            sessions: self.sessions.saturating_sub(other.sessions),
            vqps: self.vqps.saturating_sub(other.vqps),
            ports: self.ports.saturating_sub(other.ports),
            mrs: self.mrs.saturating_sub(other.mrs),
            bytes: self.bytes.saturating_sub(other.bytes),
            mappings: self.mappings.saturating_sub(other.mappings),
            leased_wrs: self.leased_wrs.saturating_sub(other.leased_wrs),
        }
    }

    /// Its parts as users know them, with the options that bound them.
    fn parts(self) -> [(&'static str, &'static str, u64); 5] {
        [
            ("sessions", "sessions", self.sessions.into()),
            ("VQPs", "vqps", self.vqps.into()),
            ("ports", "ports", self.ports.into()),
            ("memory regions", "mrs", self.mrs.into()),
            ("bytes of memory", "bytes", self.bytes),
        ]
    }
}

impl Quotas {
    /// With what there is of all for all accounts.
    pub(super) fn new(config: QuotaConfig, total: Usage) -> Quotas {
        let classes = Classes::default();
        let (all, accounts) = (Usage::NONE, FxHashMap::default());
        let parting = VecDeque::new();
        Quotas { config, classes, total, all, leases_refused: 0, accounts, parting }
    }

    /// Takes some of an account's quota, or says what there is too much of.
    pub(super) fn take(&mut self, account: Account, more: Usage) -> Result<(), Refused> {
        let has = self.of(account);
        let will = has.plus(more);
        let all = self.all.plus(more);
        if !self.is_exempt(account) {
            self.check(account, has, will, all)?;
            if let Err(refused) = self.check_leases(account, (has, will), all) {
                self.leases_refused += 1;
                return Err(refused);
            }
        }
        self.check_mappings(account, (has, will), all)?;
        self.count(account, more);
        Ok(())
    }

    /// The priority that a VQP gets: the configuration's for the user, and not what is claimed.
    pub(super) fn class_of(
        &self,
        customer: Customer,
        user: (u32, u32),
        asked: Option<Class>,
    ) -> Result<Class, Refused> {
        let Customer { account, is_trusted } = customer;
        // The numbers of a namespace that has an account of its own are none of the host's users.
        let known = (account.space == 0).then_some(user);
        self.classes.class(known, is_trusted, asked).ok_or_else(|| {
            let text = format!(
                "user {} may not use the high class; ask for no class, or have the user, or a \
                 group, added to `qos.high` of the node's configuration",
                user.0
            );
            Refused::new(RefusalCode::Permission, text)
        })
    }

    fn check(&self, account: Account, has: Usage, will: Usage, all: Usage) -> Result<(), Refused> {
        let QuotaConfig { sessions, vqps, ports, mrs, bytes, .. } = self.config;
        let limits = Usage { sessions, vqps, ports, mrs, bytes, ..Usage::NONE };
        let held = has.parts().into_iter().zip(will.parts());
        let bounds = limits.parts().into_iter().zip(self.total.parts()).zip(all.parts());
        for (((_, _, has), (what, setting, will)), bounds) in held.zip(bounds) {
            let (((.., limit), (.., total)), (.., all)) = bounds;
            // Of what others gave it an account may have too much already.
            if will <= has {
                continue;
            }
            let uid = account.uid;
            if will > limit {
                let text = format!(
                    "user {uid} would have {will} {what}, and {limit} are allowed; release some or \
                     raise `quota.{setting}` of elverd"
                );
                return Err(Refused::new(RefusalCode::Limit, text));
            }
            if !is_modest(will, all, total) {
                let text = format!(
                    "user {uid} would have {will} {what} of the node's {total}, of which it leaves \
                     some to others; release some, or let the node have more"
                );
                return Err(Refused::new(RefusalCode::Limit, text));
            }
        }
        Ok(())
    }

    /// Whether an account leaves leased queue pairs to others. One takes many WRs, so that who has none gets one while there
    /// is any, and few are not shared.
    fn check_leases(
        &self,
        account: Account,
        (has, will): (Usage, Usage),
        all: Usage,
    ) -> Result<(), Refused> {
        let (limit, total) = (self.config.leased_wrs, self.total.leased_wrs);
        let (has, will, all) = (has.leased_wrs, will.leased_wrs, all.leased_wrs);
        if will <= has {
            return Ok(());
        }
        let are_few = u64::from(total) < SHARED_MIN * u64::from(LEASE_WRS);
        let (uid, others) = (account.uid, all.saturating_sub(will));
        let (why, raise) = if will > limit {
            (format!("{limit} are allowed"), "`quota.leased_wrs`")
        } else if has == 0 || are_few || is_modest(will.into(), all.into(), total.into()) {
            return Ok(());
        } else {
            let why = format!("it leaves some of the node's {total} to others, who have {others}");
            (why, "`transfer.leased_wrs_max`")
        };
        let text = format!(
            "user {uid} would have leased queue pairs for {will} send WRs, and {why}; destroy such VQPs, make them \
             for fewer WRs, connect over shared queue pairs, or raise {raise} of elverd"
        );
        Err(Refused::new(RefusalCode::Limit, text))
    }

    /// Whoever takes the last mapping that the system lets the node have, root too, ends the node: it could allocate nothing
    /// any more for itself. Root leaves an eighth to all others, and they leave it a sixty-fourth.
    fn check_mappings(
        &self,
        account: Account,
        (has, will): (Usage, Usage),
        all: Usage,
    ) -> Result<(), Refused> {
        let total = self.total.mappings;
        let roots = total / ROOTS_MAPPINGS_PART;
        let may = if self.is_exempt(account) {
            all.mappings <= total - total / 8 || will.mappings <= roots && all.mappings <= total
        } else {
            is_modest(will.mappings.into(), all.mappings.into(), total.into())
                && all.mappings <= total - roots
        };
        if may || will.mappings <= has.mappings {
            return Ok(());
        }
        let text = format!(
            "user {} would have {} of the {total} mappings that the node may have in its memory, a region or two and a \
             session three, and leaves some to others; release some, take fewer and larger regions, or raise \
             `memory.max_mappings` of elverd and with it `vm.max_map_count` of the system, of which it has seven \
             eighths at most",
            account.uid, will.mappings
        );
        Err(Refused::new(RefusalCode::Limit, text))
    }

    /// Mappings that all accounts have together.
    pub(super) fn mappings(&self) -> u32 {
        self.all.mappings
    }

    /// Whether an account has no quota: root could raise its own.
    pub(super) fn is_exempt(&self, account: Account) -> bool {
        account.is_root && self.config.exempt_root
    }

    /// Counts what others gave an account: VQPs that its processes accepted.
    pub(super) fn count(&mut self, account: Account, more: Usage) {
        let holding = self.accounts.entry(account).or_default();
        holding.usage = holding.usage.plus(more);
        self.all = self.all.plus(more);
    }

    /// Counts WRs that were taken from a session of an account's.
    pub(super) fn count_wrs(&mut self, account: Account, wrs: u64) {
        if let Some(holding) = self.accounts.get_mut(&account) {
            holding.wrs += wrs;
        }
    }

    /// What an account has.
    pub(super) fn of(&self, account: Account) -> Usage {
        self.accounts.get(&account).map_or(Usage::NONE, |holding| holding.usage)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, account: Account, less: Usage) {
        let Some(has) = self.accounts.get_mut(&account) else { return };
        has.usage = has.usage.minus(less);
        self.all = self.all.minus(less);
        if has.usage == Usage::NONE {
            self.accounts.remove(&account);
        }
    }

    /// Gives back what goes with a VQP that is destroyed when nothing of it is on its way any more: else who destroyed such
    /// could have others in their places, as often as he likes.
    pub(super) fn give_back_later(
        &mut self,
        account: Account,
        less: Usage,
        vqp: (ClientId, VqpId),
    ) {
        if less == Usage::NONE || self.is_exempt(account) {
            return self.give_back(account, less);
        }
        // What an account has bounds how many there are.
        self.parting.push_back((vqp, account, less));
    }

    /// Whether something is to be given back.
    pub(super) fn is_parting(&self) -> bool {
        !self.parting.is_empty()
    }

    /// Looks at some of what is to be given back, and gives it back if its VQP has gone.
    pub(super) fn tend(&mut self, is_going: impl Fn(ClientId, VqpId) -> bool) {
        for _ in 0..self.parting.len().min(PARTING_LOOKS) {
            let Some((vqp, account, less)) = self.parting.pop_front() else { return };
            if is_going(vqp.0, vqp.1) {
                self.parting.push_back((vqp, account, less));
            } else {
                self.give_back(account, less);
            }
        }
    }

    /// What each account has.
    pub(super) fn accounts(&self) -> impl Iterator<Item = (Account, &Holding)> {
        self.accounts.iter().map(|(account, holding)| (*account, holding))
    }
}

/// Whether one who has so many leaves enough to others, where all have so many of so many in total.
pub(super) fn is_modest(has: u64, all: u64, total: u64) -> bool {
    // What is counted is far below this; bytes, which have no total here, are not.
    if !(SHARED_MIN..=u64::from(u32::MAX)).contains(&total) || has == 1 && all <= total {
        return true;
    }
    let (left, total) = (u128::from(total.saturating_sub(all)), u128::from(total));
    u128::from(has) * total * total <= SHARE * left * left * left
}

#[cfg(test)]
mod tests;
