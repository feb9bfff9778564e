//! Joining multicast groups. On RoCE that asks nobody: the group's address is its GID, and the datagrams come to
//! whoever attaches a QP to it, which librdmacm does when it is told of the join.

use std::ffi::c_int;
use std::net::SocketAddr;

use elver_verbs::Gid;

use crate::cm::abi::{CreateIdResp, DestroyId, DestroyIdResp, Join, JoinIp};
use crate::cm::address;
use crate::cm::command::{Command, UDP_QKEY, given};
use crate::cm::state::{Cm, Joined, Kind, to};

/// Groups that a process has joined at most, counting each time.
const JOINED: usize = 1 << 14;
/// The QPN of datagrams to a group.
const TO_ALL: u32 = 0xff_ffff;
/// `RDMA_MC_JOIN_FLAG_RESERVED`, the first that means nothing.
const FLAGS_END: u16 = 2;
/// The lengths of the addresses of both IP versions.
const LENGTHS: [(c_int, u16); 2] = [
    (libc::AF_INET, size_of::<libc::sockaddr_in>() as u16),
    (libc::AF_INET6, size_of::<libc::sockaddr_in6>() as u16),
];

impl Cm {
    /// JOIN_IP_MCAST.
    pub(crate) fn join_ip(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let join: JoinIp = command.whole()?;
        let at = given(&join.addr)?;
        self.join(command, (join.id, join.uid, join.response), at)
    }

    /// JOIN_MCAST.
    pub(crate) fn join_any(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let join: Join = command.whole()?;
        let length = LENGTHS.iter().find(|(family, _)| *family == address::family(&join.addr));
        if length.is_none_or(|(_, length)| *length != join.addr_size)
            || join.join_flags >= FLAGS_END
        {
            return Err(libc::EINVAL);
        }
        let at = given(&join.addr)?;
        self.join(command, (join.id, join.uid, join.response), at)
    }

    fn join(
        &mut self,
        command: &Command<'_>,
        (id, uid, response): (u32, u64, u64),
        group: SocketAddr,
    ) -> Result<(), c_int> {
        if command.room < size_of::<CreateIdResp>() {
            return Err(libc::ENOSPC);
        }
        let held = self.id(id)?;
        let tos = held.tos;
        if !held.has_device || !held.is_datagrams() || group.ip().is_unspecified() {
            return Err(libc::EINVAL);
        }
        if self.joined.len() >= JOINED {
            return Err(libc::ENOMEM);
        }
        while self.joined.contains_key(&self.next_join) {
            self.next_join = self.next_join.wrapping_add(1);
        }
        let number = self.next_join;
        self.next_join = self.next_join.wrapping_add(1);
        command.answer(response, CreateIdResp { id: number })?;
        self.joined.insert(number, Joined { id, uid, reported: 0 });
        self.tell_group(number, Kind::MulticastJoin, |resp| {
            resp.param.qp_num = TO_ALL;
            resp.param.qkey = UDP_QKEY;
            resp.param.ah_attr = to(Gid::from(group.ip()), tos);
        });
        Ok(())
    }

    /// LEAVE_MCAST.
    pub(crate) fn leave(&mut self, command: &Command<'_>) -> Result<(), c_int> {
        let leave: DestroyId = command.whole()?;
        if command.room < size_of::<DestroyIdResp>() {
            return Err(libc::ENOSPC);
        }
        let Joined { id, reported, .. } = self.joined.remove(&leave.id).ok_or(libc::ENOENT)?;
        self.forget_group(id, leave.id);
        command.answer(leave.response, DestroyIdResp { events_reported: reported })
    }
}
