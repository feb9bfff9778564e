//! How children take sessions over that were made ahead for them.

use elver_portal::RefusalCode;
use rustix::process::Pid;

use super::{Child, Heir, Sets, State};
use crate::engine::session::Open;
use crate::engine::translate::Refused;

impl Sets {
    /// Gives a child the heir that it wants. Its session is begun with what this returns.
    pub(in crate::engine) fn inherit(
        &mut self,
        number: u32,
        wanted: Option<u32>,
        child: Option<Child>,
    ) -> Result<(Child, Open), Refused> {
        let unseen = || {
            let text = "a session goes to a child of the process that prepared it, and the node does not see whose \
                        child this one is: it runs in another PID namespace, or that process has ended";
            Refused::new(RefusalCode::Permission, text)
        };
        let given = child
            .ok_or_else(unseen)
            .and_then(|child| Ok((child, self.give(number, wanted, child)?)));
        match given {
            Ok(_) => self.counts.inherited += 1,
            Err(_) => self.counts.refused += 1,
        }
        given
    }

    fn give(&mut self, number: u32, wanted: Option<u32>, child: Child) -> Result<Open, Refused> {
        let refuse = |text: String| Refused::new(RefusalCode::Permission, text);
        let Child { pid, parent, uid, customer } = child;
        let unknown = || {
            refuse(format!(
                "no set of number {number} is process {parent}'s, whose child {pid} is; a session goes to \
                 a child of the process that prepared it, not to a child's child, and not once that \
                 process has ended or the node was started anew"
            ))
        };
        let set = self.all.get_mut(&number).ok_or_else(unknown)?;
        if Some(parent) != set.parent.pid {
            return Err(unknown());
        }
        if uid != set.parent.uid || customer != set.parent.customer {
            return Err(refuse(format!(
                "process {pid} is user {uid}'s, and the session was prepared by one of user {}'s; take it \
                 over before changing the user, the namespaces or the capabilities",
                set.parent.uid
            )));
        }
        let has = |heir: &Heir| matches!(heir.state, State::Taken(by) if by == pid);
        if let Some(at) = set.heirs.iter().position(has) {
            return Err(refuse(format!("process {pid} has session {at} of the set already")));
        }
        let at = match wanted {
            Some(at) => set.heirs.get(at as usize).map(|_| at),
            None => {
                let is_free = |heir: &Heir| matches!(heir.state, State::Free(_));
                set.heirs.iter().position(is_free).map(|at| at as u32)
            }
        };
        let none = |text: String| Refused::new(RefusalCode::Busy, text);
        let at = at.ok_or_else(|| match wanted {
            Some(at) => none(format!("there is no session {at}: the set has {}", set.layout.heirs)),
            None => none(format!(
                "all {} sessions of the set are taken, or being made",
                set.layout.heirs
            )),
        })?;
        let heir = &mut set.heirs[at as usize];
        match std::mem::take(&mut heir.state) {
            State::Free(ready) => {
                heir.state = State::Taken(pid);
                self.clients.remove(&ready.open.client);
                let mut open = ready.open;
                open.heir = Some((number, at));
                Ok(open)
            }
            other => {
                heir.state = other;
                Err(none(format!("session {at} of the set is taken, or being made")))
            }
        }
    }

    /// A child's session has begun: its record says so.
    pub(in crate::engine) fn begun(&mut self, (number, at): (u32, u32), pid: Pid) {
        let heir = self.all.get_mut(&number).and_then(|set| set.heirs.get_mut(at as usize));
        if let Some(place) = heir.and_then(|heir| heir.place.as_ref()) {
            place.heir.taken(pid.as_raw_pid());
        }
    }
}
