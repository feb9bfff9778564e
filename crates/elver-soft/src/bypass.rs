use std::net::IpAddr;

/// What became of a packet that could go past the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It goes by the link: nobody there is reached otherwise.
    ByLink,
    /// It was taken.
    Taken,
    /// There was no room, as if the network had lost it.
    Lost,
}

/// Another way than the link to some devices of this host. Packets are not sealed.
pub trait Bypass: Send {
    /// Carries a packet to the device at an address.
    fn carry(&mut self, to: IpAddr, traffic_class: u8, packet: &[u8]) -> Carried;
    /// Wakes those that something was carried to and that sleep.
    fn ring(&mut self);
    /// Whether anybody is reached that way.
    fn has_peers(&mut self) -> bool;
    /// Whether something came.
    fn has_more(&mut self) -> bool;
    /// Takes a packet that came: whence, its traffic class and its length.
    fn take(&mut self, buf: &mut [u8]) -> Option<(IpAddr, u8, usize)>;
    /// Makes room for as much as was taken.
    fn took(&mut self);
}
