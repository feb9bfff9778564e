//! Frames of any content on the link of a station: nothing may panic, and everything is answered,
//! taken or counted.
use std::os::unix::net::UnixDatagram;

use elver_soft::{FrameLink, FrameSocket, SoftConfig, SoftDevice};
use elver_verbs::Device;

/// Longest frame of an input.
const FRAME_MAX: usize = 2048;

/// Runs an input.
pub fn run(data: &[u8]) {
    let (wire, far) = UnixDatagram::pair().expect("a socket pair");
    wire.set_nonblocking(true).expect("a socket that does not block");
    let socket = FrameSocket::from_fd(far).expect("a datagram socket");
    let addresses = ["10.9.0.2/24", "fd00::2/64"].map(|text| text.parse().expect("an address"));
    let link = FrameLink::new(socket, addresses.to_vec());
    let mac = link.station().0;
    let mut config = SoftConfig::for_frames(link);
    config.publish = false;
    let mut device = SoftDevice::open(config).expect("a device");

    // An input is frames, each behind its length; the top bit addresses it to the station.
    let mut rest = data;
    while let Some((head, tail)) = rest.split_first_chunk::<2>() {
        let head = u16::from_le_bytes(*head);
        let len = (usize::from(head & 0x7fff) % FRAME_MAX).min(tail.len());
        let (frame, tail) = tail.split_at(len);
        let mut frame = frame.to_vec();
        if head & 0x8000 != 0 && frame.len() >= mac.len() {
            frame[..mac.len()].copy_from_slice(&mac);
        }
        // An empty message is the end of a connection, which a datagram socket has not.
        if !frame.is_empty() {
            wire.send(&frame).expect("room for one frame");
        }
        device.progress();
        let mut answer = [0; FRAME_MAX];
        while wire.recv(&mut answer).is_ok() {}
        rest = tail;
    }
}
