//! Memory that several sessions of one process have registered.
//!
//! A process is one that the system shows to the node, and the same account: who names a region of another process's,
//! whatever he guesses, is told that there is none. A child with a session that its parent prepared has what the parent
//! has: it inherited the mapping. Each session has keys of its own and its own bytes of the quota.
//! The memory goes back to the system with the last of its regions.

use elver_core::Core;
use elver_portal::{Answer, RefusalCode};
use elver_soft::SoftDevice;
use elver_verbs::AccessFlags;

use super::held::Held;
use super::quota::Usage;
use super::room::Backing;
use super::session::{Region, Session};
use super::sessions::Sessions;
use super::translate::Refused;

/// What a session wants to register that is registered already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) lkey: u32,
    pub(super) addr: u64,
    pub(super) access: AccessFlags,
}

impl Sessions {
    /// Registers memory for a session that it or another of its process has registered.
    pub(super) fn share(
        &mut self,
        slot: u32,
        share: Share,
        core: &mut Core<SoftDevice>,
    ) -> Result<Answer<'static>, Refused> {
        let (held, backing, usage) = self.seek(slot, share).ok_or_else(|| {
            let text = format!(
                "no session of this process has a region of key {:#x} in memory that the node made for \
                 sharing; it may have been deregistered",
                share.lkey
            );
            Refused::new(RefusalCode::NoSuchMr, text)
        })?;
        let gone = || Refused::new(RefusalCode::State, "the session has ended");
        let (session, quotas) = self.get_with_quotas(slot).ok_or_else(gone)?;
        let account = session.account();
        let open = session.open.as_mut().ok_or_else(gone)?;
        quotas.take(account, usage)?;
        let memory = (*held.memory).clone();
        match core.reg_mr(open.client, memory, Some(share.addr), share.access) {
            Ok(info) => {
                let region = Region { usage, memory: Some(held), backing };
                open.regions.insert(info.lkey, region);
                Ok(Answer::Mr { lkey: info.lkey, rkey: info.rkey, file_bytes: 0 })
            }
            Err(error) => {
                quotas.give_back(account, usage);
                Err(error.into())
            }
        }
    }

    /// The memory of a region of the process that a session is of, its file, and what it counts.
    fn seek(&self, slot: u32, share: Share) -> Option<(Held, Option<Backing>, Usage)> {
        let asks = self.at(slot)?;
        self.iter().filter(|has| is_same_process(asks, has)).find_map(|has| {
            let region = has.open.as_ref()?.regions.get(&share.lkey)?;
            let held = region.memory.as_ref().filter(|held| held.addr == share.addr)?;
            Some((held.clone(), region.backing.clone(), region.usage))
        })
    }
}

/// Whether two sessions are one process's, or the first a child's of the other's, and of one account. A session ends with its process, so that the
/// numbers of two that are there are those of processes that are; one that the node does not see has none, and is nobody's.
fn is_same_process(one: &Session, other: &Session) -> bool {
    let (Some(own), Some(its)) = (one.peer.pid, other.peer.pid) else { return false };
    let related = own == its || one.parent == Some(its);
    related && one.peer.uid == other.peer.uid && one.account() == other.account()
}
