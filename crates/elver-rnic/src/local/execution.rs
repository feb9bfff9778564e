//! What a request within the device does at its target.

use elver_verbs::{AccessFlags, Gid, Memory, RemoteAddr, SendOp};
use elver_wire::{IpId, Reth, Tail};

use super::request::{Request, Stopped};
use crate::aside::ERRAND_BYTES_MAX;
use crate::execute::{Atomic, End, Fault, Inbound, Segments, Sender, Source};
use crate::hw::Hw;
use crate::place::{Place, Refused};
use crate::qp_core::QpCore;
use crate::route::Route;
use crate::unreliable::receive_datagram;
use crate::{RxMeta, grh};

impl QpCore {
    #[inline]
    pub(crate) fn execute<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        request: &Request,
    ) -> Result<(), Stopped> {
        let Request { op, length, skip, total, .. } = *request;
        let (remote, change) = match op {
            SendOp::Read(RemoteAddr { addr: va, rkey }) => {
                let place = self.grant_read(hw, &Reth { va, rkey, len: total }, 0)?;
                let Some(mut place) = place else { return Ok(()) };
                place.offset += u64::from(skip);
                if !request.placed {
                    look_first(hw, place, length)?;
                }
                return fetch(hw, place);
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                (remote, Atomic::CompareSwap { compare, swap })
            }
            SendOp::FetchAdd { remote, add } => (remote, Atomic::FetchAdd { add }),
            _ => return Ok(self.take_bytes(hw, request)?),
        };
        let original = self.atomic(hw, remote.addr, remote.rkey, 0, change)?;
        give(hw, &original.to_ne_bytes()).map_err(|stopped| match stopped {
            Stopped::Fault(Fault::Later) => Stopped::Found(original),
            stopped => stopped,
        })
    }

    /// Executes a request that brings bytes.
    fn take_bytes<M: Memory>(&mut self, hw: &mut Hw<M>, request: &Request) -> Result<(), Fault> {
        let recv = core::mem::take(&mut hw.scratch.recv);
        let mut inbound = Inbound::with_buffers(recv);
        let executed = if request.inline {
            let bytes = core::mem::take(&mut hw.scratch.inline);
            let executed = self.run(hw, &mut inbound, request, &bytes[..]);
            hw.scratch.inline = bytes;
            executed
        } else {
            let segments = core::mem::take(&mut hw.scratch.segments);
            let bytes = Segments { segments: &segments, length: request.length };
            let executed = self.run(hw, &mut inbound, request, &bytes);
            hw.scratch.segments = segments;
            executed
        };
        hw.scratch.recv = inbound.into_buffers();
        executed
    }

    fn run<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        inbound: &mut Inbound,
        request: &Request,
        bytes: &(impl Source + ?Sized),
    ) -> Result<(), Fault> {
        let Request { op, length, skip, total, solicited, source: qpn, .. } = *request;
        let source = || Sender { qpn, gid: Gid::from(request.from) };
        let va = |remote: RemoteAddr| remote.addr.wrapping_add(u64::from(skip));
        let reth = |remote: RemoteAddr| Reth { va: va(remote), rkey: remote.rkey, len: length };
        if let SendOp::Write(RemoteAddr { addr, rkey })
        | SendOp::WriteWithImm(RemoteAddr { addr, rkey }, _) = op
            && length < total
        {
            // All of it is granted, or nothing is.
            self.check_access(AccessFlags::REMOTE_WRITE)?;
            self.place(hw, addr, rkey, total, AccessFlags::REMOTE_WRITE)?;
        }
        let tail = match op {
            SendOp::Write(remote) => {
                return inbound.write_only(self, hw, &reth(remote), total, bytes, None);
            }
            SendOp::WriteWithImm(remote, imm) => {
                let last = skip + length == total;
                let end = End::of_write(last.then_some(imm), solicited, source);
                return inbound.write_only(self, hw, &reth(remote), total, bytes, end);
            }
            SendOp::Send => Tail::Plain,
            SendOp::SendWithImm(imm) => Tail::Imm(imm),
            SendOp::SendWithInv(rkey) => Tail::Inv(rkey),
            // What brings nothing is not run here.
            _ => return Err(Fault::Invalid),
        };
        let end = End { tail, solicited, source: source() };
        if let Some(ah) = request.ah {
            let handle = hw.ahs.get(ah.0).ok_or(Fault::Invalid)?;
            let Route { flow, traffic_class, hop_limit, .. } = handle.route;
            let meta = RxMeta { flow, traffic_class, hop_limit, ip_id: IpId::Exact(0) };
            let header = grh::from_meta(&meta, length as usize);
            return receive_datagram(self, hw, &header, bytes, end);
        }
        inbound.send(self, hw, bytes, Some(end))
    }
}

/// Whether bytes can be read that find no place: memory that is gone here is found before that. Of what
/// is not at hand and too long to be fetched it is not asked.
#[cold]
fn look_first<M: Memory>(hw: &Hw<M>, at: Place, length: u32) -> Result<(), Fault> {
    hw.regions.desk.expect(length);
    let looked = hw.regions.look_at(at, length.into());
    hw.regions.desk.expect(0);
    match looked {
        Ok(()) => Ok(()),
        Err(Refused::Later) if length <= ERRAND_BYTES_MAX => Err(Fault::Later),
        Err(Refused::Later) => Ok(()),
        Err(_) => Err(Fault::Operation),
    }
}

/// Moves bytes from one place to the memory of the request that reads them.
#[inline(always)]
fn fetch<M: Memory>(hw: &Hw<M>, mut at: Place) -> Result<(), Stopped> {
    for segment in &hw.scratch.segments {
        let length = u64::from(segment.length);
        hw.regions.copy(segment.place, at, length).map_err(|refused| match refused {
            Refused::Access => Stopped::Unplaced,
            Refused::Source => Stopped::Fault(Fault::Operation),
            Refused::Later => Stopped::Fault(Fault::Later),
        })?;
        at.offset += length;
    }
    Ok(())
}

/// Puts an answer's bytes into the request's memory.
pub(crate) fn give<M: Memory>(hw: &Hw<M>, mut bytes: &[u8]) -> Result<(), Stopped> {
    for segment in &hw.scratch.segments {
        let (piece, rest) = bytes.split_at((segment.length as usize).min(bytes.len()));
        hw.regions.write(segment.place, piece).map_err(|refused| match refused {
            Refused::Later => Stopped::Fault(Fault::Later),
            _ => Stopped::Unplaced,
        })?;
        bytes = rest;
    }
    Ok(())
}
