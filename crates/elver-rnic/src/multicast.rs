//! Multicast groups of UD QPs (IBTA vol. 1, 10.5): which QPs are attached to which, and the datagrams
//! that they receive by it.
//!
//! A datagram to a group names QP 0xffffff, and each attached QP but the one that sent it gets a copy. What
//! this device sends to a group comes back to its own QPs by the network, as on every multicast socket, or by
//! the driver where the network does not hear itself.

use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::net::IpAddr;

use elver_verbs::{Gid, Memory, ObjectKind, Qp, QpType, Time, VerbsError};
use elver_wire::{Deth, Headers, Route};

use crate::distrust::Class;
use crate::ingress::takes_packets;
use crate::{Rnic, RxMeta, unreliable};

/// The QPN of datagrams to a group (IBTA vol. 1, 9.2.4.2).
const MULTICAST_QPN: u32 = 0xff_ffff;

impl<M: Memory> Rnic<M> {
    /// Attaches a UD QP to a multicast group, once, however often it is asked for. True if it is the first of
    /// the group: then the driver must have the group's datagrams brought.
    ///
    /// # Errors
    /// An unknown QP, or one of another transport; a GID that is no group's, or of an IP version that no
    /// address of the device has; too many groups, or QPs in this one.
    pub fn attach_multicast(&mut self, qp: Qp, group: Gid) -> Result<bool, VerbsError> {
        let group = self.check_group(qp, group)?;
        let config = &self.hw.config;
        let (max_groups, max_members) = (config.max_mcast_grp, config.max_mcast_qp_attach);
        let limit = |limit, setting| VerbsError::Limit {
            kind: ObjectKind::Group,
            limit: u64::from(limit),
            setting,
        };
        let count = self.groups.members.len();
        match self.groups.members.entry(group) {
            Entry::Occupied(mut held) => {
                let members = held.get_mut();
                if members.contains(&qp.0) {
                    return Ok(false);
                }
                if members.len() >= max_members as usize {
                    return Err(limit(max_members, "max_mcast_qp_attach"));
                }
                members.push(qp.0);
                Ok(false)
            }
            Entry::Vacant(free) => {
                if count >= max_groups as usize {
                    return Err(limit(max_groups, "max_mcast_grp"));
                }
                free.insert(Vec::from([qp.0]));
                Ok(true)
            }
        }
    }

    /// Detaches a QP from a group. True if it was the last: then the driver need not bring the group's datagrams
    /// any more.
    ///
    /// # Errors
    /// As [`Rnic::attach_multicast`]; a QP that is not attached.
    pub fn detach_multicast(&mut self, qp: Qp, group: Gid) -> Result<bool, VerbsError> {
        let group = self.check_group(qp, group)?;
        let missing = VerbsError::InvalidArgument { what: "the QP is not attached to the group" };
        let Some(members) = self.groups.members.get_mut(&group) else {
            return Err(missing);
        };
        let at = members.iter().position(|member| *member == qp.0).ok_or(missing)?;
        members.remove(at);
        let last = members.is_empty();
        if last {
            self.groups.members.remove(&group);
        }
        Ok(last)
    }

    /// The groups that a QP is attached to.
    pub fn groups_of(&self, qp: Qp) -> Vec<Gid> {
        let has = self.groups.members.iter().filter(|(_, members)| members.contains(&qp.0));
        has.map(|(group, _)| Gid::from(*group)).collect()
    }

    fn check_group(&self, qp: Qp, group: Gid) -> Result<IpAddr, VerbsError> {
        if self.qps.require(qp.0)?.core.qp_type != QpType::Ud {
            return Err(VerbsError::InvalidArgument { what: "only UD QPs take multicast" });
        }
        let group = group.to_ip();
        if !group.is_multicast() {
            return Err(VerbsError::InvalidArgument {
                what: "a multicast group's GID is a multicast address",
            });
        }
        if !self.hw.config.addresses.iter().any(|own| own.is_ipv4() == group.is_ipv4()) {
            return Err(VerbsError::InvalidArgument {
                what: "the group and an address of the device must be of one IP version",
            });
        }
        Ok(group)
    }

    /// Takes a UDP payload that came to a group's address, as [`Rnic::handle_datagram`] takes those to an
    /// address of the device. It can do no more than give bytes to the receives of UD QPs in that group whose
    /// Q_Key it has.
    pub fn handle_multicast(&mut self, now: Time, meta: &RxMeta, payload: &[u8]) {
        let Some(view) = self.accept(meta, payload, true) else { return };
        let headers = view.headers();
        let Route::Ud(deth) = headers.route() else {
            self.hw.counters.drop_qpn += 1;
            return;
        };
        if headers.dest_qpn.get() != MULTICAST_QPN {
            self.hw.counters.drop_qpn += 1;
            return;
        }
        let members = match self.groups.members.get_mut(&meta.flow.dst.ip()) {
            Some(members) => core::mem::take(members),
            None => {
                self.hw.counters.drop_qpn += 1;
                return;
            }
        };
        self.give_to_members(now, meta, &deth, headers, view.payload(), &members);
        if let Some(back) = self.groups.members.get_mut(&meta.flow.dst.ip()) {
            *back = members;
        }
        self.stop_cut_off(now);
    }

    fn give_to_members(
        &mut self,
        now: Time,
        meta: &RxMeta,
        deth: &Deth,
        headers: &Headers,
        payload: &[u8],
        members: &[u32],
    ) {
        let source = meta.flow.src.ip();
        let from_here = self.hw.config.addresses.contains(&source);
        let other_port = meta.flow.src.port() != self.hw.config.udp_port;
        if other_port && self.hw.distrust.holds(source, Class::OtherPort, now) {
            self.hw.counters.drop_distrusted += 1;
            return;
        }
        // One group may have QPs of several Q_Keys: who knows one of them guesses none.
        let mut knows_one = false;
        for &member in members {
            let Some(queue_pair) = self.qps.get_mut(member) else {
                bug!("a QP went before its groups");
                continue;
            };
            let core = &mut queue_pair.core;
            if from_here && core.qpn == deth.src_qpn {
                knows_one = true;
                continue;
            }
            if !takes_packets(core.state, false) {
                self.hw.counters.drop_state += 1;
                continue;
            }
            if other_port && core.init.same_source_port {
                self.hw.counters.drop_source_port += 1;
                continue;
            }
            knows_one |= deth.qkey == core.attr.qkey;
            unreliable::datagram(core, &mut self.hw, meta, deth, headers, payload);
        }
        if other_port && !knows_one {
            self.hw.distrust.failed(source, Class::OtherPort, now);
        }
    }
}
