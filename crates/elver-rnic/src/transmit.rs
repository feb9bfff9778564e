use elver_wire::{Flow, Qpn};

/// A packet that was written, and how it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length in bytes, from the BTH to the ICRC, whose 4 bytes are still to be sealed.
    pub len: usize,
    /// Its addresses.
    pub flow: Flow,
    /// IP traffic class, with the ECN bits.
    pub traffic_class: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// It ends a short turn ([`elver_verbs::Device::take_short_turns`]): it should be sent, and what
    /// came meanwhile be looked at, before another packet is asked for.
    pub ends_piece: bool,
}

/// A CNP that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notification {
    pub(crate) flow: Flow,
    pub(crate) to: Qpn,
}
