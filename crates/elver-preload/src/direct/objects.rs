//! What this process tells peers of its objects, as they come, change and go.

use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use elver_soft::{Reach, SoftDevice};
use elver_verbs::{AccessFlags, Device as _, Pd, Qp, QpState, QpType};

use super::hub::Hub;
use super::peer::Peer;
use super::run::Link;
use super::stage::Stage;
use super::table::Name;
use super::told::{Door, Place, Rest};

/// Who asks for another way, or for this one.
const VARIABLE: &str = "ELVER_DIRECT";

/// What the engine's lock protects of the direct way.
#[derive(Default)]
pub(crate) struct Direct {
    hub: Option<Arc<Hub>>,
    own: Option<IpAddr>,
    pub(crate) stage: Stage,
    /// QPs that peers were told of, those in RTR that had their first packet among them.
    doors: Vec<Qp>,
    /// Those that are changing, once for each who changes them.
    held: Vec<Qp>,
    /// What the device said when it was asked last whether any of them failed.
    failures: u64,
}

/// Whether the user wants it, who may say "on" or "off".
fn is_wanted() -> Result<bool, String> {
    match std::env::var_os(VARIABLE) {
        None => Ok(true),
        Some(word) if word == "on" => Ok(true),
        Some(word) if word == "off" => Ok(false),
        Some(other) => Err(format!("{VARIABLE} is {other:?}; give on or off")),
    }
}

/// What finds peers, and is found by them; none where it is not wanted. Where it cannot be had all goes by
/// packets, as without it.
pub(crate) fn open(own: IpAddr, bell: &OwnedFd) -> Result<Option<Arc<Hub>>, String> {
    let wanted = is_wanted()?;
    let bell = bell.try_clone().ok().filter(|_| wanted);
    Ok(bell.and_then(|bell| Hub::open(own, bell).ok()))
}

/// A region that peers may be told of.
pub(crate) struct Told {
    pub(crate) rkey: u32,
    pub(crate) pd: Pd,
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    /// Of its first byte in this process.
    pub(crate) address: u64,
}

/// Tells peers of a region, whatever they may do with it.
pub(crate) fn tell_region(hub: Option<&Arc<Hub>>, told: &Told) {
    let Told { rkey, pd, base, length, access, address } = *told;
    if let Some(hub) = hub {
        let reach = Reach { rkey, pd: pd.0, base, length, access };
        // One that has no place in the table is reached by packets.
        hub.table.tell(Name::Region(rkey), Place { reach, address }.words());
    }
}

/// Keeps peers from a region that is to go or to change: none reaches for it any more.
pub(crate) fn take_back_region(hub: Option<&Arc<Hub>>, rkey: u32) -> Result<Option<Rest>, c_int> {
    hub.map_or(Ok(None), |hub| hub.take_back(Name::Region(rkey)))
}

/// What is different about a region: what is none stayed.
#[derive(Default)]
pub(crate) struct Change {
    /// Where it begins, here and for peers, and its length.
    pub(crate) memory: Option<(u64, u64)>,
    pub(crate) pd: Option<Pd>,
    pub(crate) access: Option<AccessFlags>,
}

/// Tells of a region again that was taken back, and has changed or not.
pub(crate) fn tell_region_again(
    hub: Option<&Arc<Hub>>,
    rkey: u32,
    rest: Option<Rest>,
    change: &Change,
) {
    if let (Some(hub), Some(rest)) = (hub, rest) {
        let mut place = Place::of(rkey, &rest);
        if let Some((start, length)) = change.memory {
            place.address = start;
            (place.reach.base, place.reach.length) = (start, length);
        }
        place.reach.pd = change.pd.map_or(place.reach.pd, |pd| pd.0);
        place.reach.access = change.access.unwrap_or(place.reach.access);
        hub.table.tell(Name::Region(rkey), place.words());
    }
}

/// Keeps peers from a QP that is to go or to change; [`Direct::hold`] keeps it so.
pub(crate) fn take_back_qp(hub: Option<&Arc<Hub>>, qpn: u32) -> Result<(), c_int> {
    hub.map_or(Ok(()), |hub| hub.take_back(Name::Qp(qpn)).map(drop))
}

/// The device of the peer that a QP is connected to, once it is.
pub(crate) fn destination(device: &SoftDevice, qp: Qp) -> Option<IpAddr> {
    let (attr, init) = device.query_qp(qp).ok()?;
    let connected = matches!(attr.qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
    (connected && matches!(init.qp_type, QpType::Rc | QpType::Uc))
        .then(|| attr.ah_attr.dgid.to_ip())
}

impl Direct {
    pub(crate) fn new(hub: Option<Arc<Hub>>, own: IpAddr) -> Direct {
        Direct { hub, own: Some(own), ..Direct::default() }
    }

    /// A QP is about to go or to change, and is to be told of by nobody until it has.
    pub(crate) fn hold(&mut self, qp: Qp) {
        self.held.push(qp);
    }

    /// It stayed as it is, has changed, or has gone.
    pub(crate) fn release(&mut self, qp: Qp) {
        if let Some(at) = self.held.iter().position(|held| *held == qp) {
            self.held.swap_remove(at);
        }
    }

    /// A QP has come to another state or has other rights: tells its peer what it lets him do. Returns the
    /// numbers that it and its peer's have.
    pub(crate) fn tell_qp(&mut self, device: &SoftDevice, qp: Qp) -> Option<(u32, u32)> {
        // In RTR the first packet is an event, behind which it is told of.
        let was_told = self.doors.contains(&qp);
        self.doors.retain(|other| *other != qp);
        let hub = self.hub.as_ref()?;
        let dest = destination(device, qp)?;
        let (attr, init) = device.query_qp(qp).ok()?;
        let qpn = device.qp_num(qp).ok()?;
        let door = Door {
            dest_qpn: attr.dest_qp_num,
            dest,
            pd: init.pd?.0,
            access: attr.qp_access_flags,
            reads: attr.max_dest_rd_atomic,
        };
        let answers = match attr.qp_state {
            QpState::Rts => true,
            QpState::Rtr => was_told,
            _ => false,
        };
        // Who is changing it tells of it then.
        let is_held = self.held.contains(&qp);
        if answers && (is_held || hub.table.tell(Name::Qp(qpn), door.words())) {
            self.doors.push(qp);
        }
        Some((qpn, attr.dest_qp_num))
    }

    /// A QP in RTR has had its first packet.
    #[cold]
    pub(crate) fn tell_established(&mut self, device: &SoftDevice, qp: Qp) {
        if !self.doors.contains(&qp) {
            self.doors.push(qp);
        }
        self.tell_qp(device, qp);
    }

    /// A QP has gone.
    pub(crate) fn forget(&mut self, qp: Qp) {
        self.doors.retain(|other| *other != qp);
        self.held.retain(|other| *other != qp);
    }

    /// A QP and a peer.
    pub(crate) fn link(&self, peer: Arc<Peer>, numbers: (u32, u32)) -> Option<Link> {
        let hub = self.hub.clone()?;
        self.own.map(|own| Link::new(hub, peer, own, numbers))
    }

    /// Keeps peers from QPs that failed of themselves since this was called last.
    #[inline]
    pub(crate) fn look(&mut self, device: &SoftDevice) {
        if device.failures() != self.failures {
            self.failures = device.failures();
            self.close_failed(device);
        }
    }

    #[cold]
    fn close_failed(&mut self, device: &SoftDevice) {
        let Some(hub) = &self.hub else { return };
        self.doors.retain(|qp| {
            let answers = [QpState::Rtr, QpState::Rts];
            let stands =
                device.query_qp(*qp).is_ok_and(|(attr, _)| answers.contains(&attr.qp_state));
            if !stands && let Ok(qpn) = device.qp_num(*qp) {
                // What a peer is doing just now came before.
                hub.table.take_back(Name::Qp(qpn));
            }
            stands
        });
    }
}
