use elver_wire::{Flow, IpId};

/// What surrounds a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Whence and to which of our addresses it came.
    pub flow: Flow,
    /// IP traffic class, with the ECN bits.
    pub traffic_class: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// IPv4 identification.
    pub ip_id: IpId,
}
