use core::net::IpAddr;

use elver_wire::cm::{MAD_LEN, Mad, Message, Rejected};

use crate::connection::State;
use crate::event::Id;
use crate::manager::Manager;
use crate::reason;

impl Manager {
    /// What would end a connection if its consumer said no more from now on, and where its peer is: for who speaks for a
    /// process that is killed. None where there is nothing to end.
    pub fn parting(&self, id: Id) -> Option<(IpAddr, [u8; MAD_LEN])> {
        let connection = self.connections.get(&id.0)?;
        let (local, remote) = (id.0, connection.remote.unwrap_or_default());
        let guid = self.config.ca_guid.to_be_bytes();
        let rejects =
            |of, reason, info| Message::Rej { local, remote, of, reason, info, private: &[] };
        let message = match connection.state {
            State::ReqSent => rejects(Rejected::Req, reason::TIMEOUT, &guid),
            State::Requested => rejects(Rejected::Req, reason::CONSUMER, &[]),
            State::Answered => rejects(Rejected::Rep, reason::CONSUMER, &[]),
            State::RepSent => rejects(Rejected::Other, reason::CONSUMER, &[]),
            State::Established | State::DreqSent => {
                Message::Dreq { local, remote, remote_qpn: connection.peer_qpn, private: &[] }
            }
            State::TimeWait
            | State::Closed
            | State::SidrSent
            | State::SidrRequested
            | State::SidrReplied => return None,
        };
        // None is longer than there is room.
        let bytes = Mad { transaction: connection.transaction, message }.write().ok()?;
        Some((connection.peer, bytes))
    }
}
