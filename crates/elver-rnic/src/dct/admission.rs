//! Who is let in: the connect that opens a session, and the proof that its initiator is where he says.

use elver_verbs::{AsyncEvent, Memory, Mtu, Qp, Time};
use elver_wire::{DcConnect, DcEth, Headers, NakCode, Psn, Syndrome};

use super::contexts::{Context, Initiator};
use crate::RxMeta;
use crate::counters::Counters;
use crate::distrust::Class;
use crate::hw::Hw;
use crate::proof::{Proof, answer_len};
use crate::qp_core::QpCore;

/// A request, and what is known of where it came from.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) meta: &'a RxMeta,
    pub(super) initiator: Initiator,
    pub(super) eth: &'a DcEth,
    pub(super) connect: Option<DcConnect>,
    /// It has a token, or says that it has none.
    pub(super) tells: bool,
    pub(super) proof: Proof,
    pub(super) headers: &'a Headers,
    /// From the BTH to the ICRC.
    pub(super) len: u64,
}

impl Request<'_> {
    /// Whether the answers to it would be longer than it is.
    fn asks_for_more(&self, mtu: u32) -> bool {
        answer_len(&self.headers.message(), mtu) > self.len
    }
}

const PROVE: Option<Syndrome> = Some(Syndrome::Nak(NakCode::DcProve));

impl Context {
    /// A packet of the session. While the initiator did not prove where he is, nothing is executed
    /// whose answer is longer than what asks for it.
    pub(super) fn go_on(
        &mut self,
        counters: &mut Counters,
        request: &Request<'_>,
        id: u32,
    ) -> Result<u32, Option<Syndrome>> {
        self.proof = self.proof.max(request.proof);
        if self.proof != Proof::None {
            return Ok(id);
        }
        if !request.tells {
            // Whom we told a token repeats it until we say that we heard it. This is not he.
            counters.drop_dc_session += 1;
            return Err(None);
        }
        self.asked |= request.connect.is_none() || request.asks_for_more(self.responder.mtu());
        if self.asked {
            self.responder.asked_again(request.headers.psn);
            return Err(PROVE);
        }
        Ok(id)
    }
}

/// A session's first PSN is the low 24 bits of its number.
pub(super) fn first_psn(session: u32) -> Psn {
    Psn::from_wrapping(session)
}

pub(super) fn class(proof: Proof) -> Class {
    if proof == Proof::None { Class::Stranger } else { Class::Proved }
}

/// Checks the connect header of a packet that opens a session. Whose place is uncertain is let in
/// with its first packet alone, if the answer is no longer, and not where it is `crowded`: forged
/// addresses take at most half of the room.
pub(super) fn check_connect<M: Memory>(
    core: &QpCore,
    hw: &mut Hw<M>,
    now: Time,
    request: &Request<'_>,
    crowded: bool,
) -> Result<Mtu, Option<Syndrome>> {
    let connect = request.connect.ok_or(Some(Syndrome::Nak(NakCode::DcNoContext)))?;
    let (address, class) = (request.initiator.address, class(request.proof));
    if hw.distrust.holds(address, class, now) {
        if class == Class::Stranger {
            // Perhaps it is somebody else who says that he is there. Let him prove it.
            return Err(PROVE);
        }
        hw.counters.drop_distrusted += 1;
        return Err(None);
    }
    if connect.access_key != core.init.dc_access_key {
        hw.distrust.failed(address, class, now);
        hw.counters.dc_refused_key += 1;
        hw.event(AsyncEvent::DctAccessErr(Qp(core.qpn.get())));
        return Err(Some(Syndrome::Nak(NakCode::RemoteAccess)));
    }
    let mtu = Mtu::from_code(connect.mtu).filter(|mtu| *mtu <= hw.config.active_mtu);
    let mtu = mtu.ok_or(Some(Syndrome::Nak(NakCode::InvalidRequest)))?;
    let begins = request.headers.psn == first_psn(request.eth.session);
    if request.proof == Proof::None && (!begins || crowded || request.asks_for_more(mtu.bytes())) {
        return Err(PROVE);
    }
    Ok(mtu)
}
