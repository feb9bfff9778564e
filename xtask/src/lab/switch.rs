//! An Ethernet switch of datagram sockets that writes what it forwards to a pcap file. It stands between guests, and
//! between a guest and a host program, so that a run can be looked at afterwards.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

/// How long a frame may wait for a receiver that is busy, before it is dropped.
const BUSY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const FRAME_SIZE_MAX: usize = 1 << 16;

/// Bytes that a wire holds in each direction.
const WIRE_BYTES: usize = 4 << 20;

/// Two ends of a wire. They keep the frames' boundaries, and tell when the other end is gone.
pub fn wire() -> Result<(OwnedFd, OwnedFd)> {
    // Not SOCK_DGRAM: that holds ten frames back at most, whatever their size.
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("cannot make a pair of sockets")?;
    for end in [&ends.0, &ends.1] {
        // User Mode Linux drops what the socket has no room for. The system may allow less.
        let _ = sockopt::set_socket_send_buffer_size(end, WIRE_BYTES);
    }
    Ok(ends)
}

/// A wire whose second end is a pair of UDP addresses of this machine: that of the program, that of the switch.
pub fn udp_wire() -> Result<(OwnedFd, String)> {
    let ours = UdpSocket::bind("127.0.0.1:0").context("cannot bind a UDP socket")?;
    // A port that was free a moment ago.
    let theirs = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    ours.connect(theirs)?;
    let addresses = format!("udp:{theirs},{}", ours.local_addr()?);
    Ok((ours.into(), addresses))
}

/// A switch at work.
pub struct Switch {
    stop: UnixStream,
    thread: JoinHandle<Result<Counts>>,
}

/// What a switch did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub frames: u64,
    pub dropped: u64,
}

impl Switch {
    pub fn start(ports: Vec<OwnedFd>, capture: &Path) -> Result<Switch> {
        let file =
            File::create(capture).with_context(|| format!("cannot make {}", capture.display()))?;
        let mut pcap = Pcap::new(BufWriter::new(file))?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::spawn(move || forward(&ports, &stopped, &mut pcap));
        Ok(Switch { stop, thread })
    }

    /// Stops it. The capture is complete then.
    pub fn stop(self) -> Result<Counts> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("the switch panicked"))?
    }
}

fn forward<W: Write>(
    ports: &[OwnedFd],
    stopped: &UnixStream,
    pcap: &mut Pcap<W>,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut homes = HashMap::new();
    let mut open = vec![true; ports.len()];
    let mut frame = vec![0; FRAME_SIZE_MAX];
    loop {
        // A port that is closed has no descriptor to wait for, but keeps its place.
        let wanted = |index: usize| if open[index] { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN)];
        fds.extend(
            (0..ports.len()).filter(|i| open[*i]).map(|i| PollFd::new(&ports[i], wanted(i))),
        );
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            other => other.context("cannot wait for frames")?,
        };
        let end = !fds[0].revents().is_empty();
        for from in 0..ports.len() {
            // Not for ever, so that a port that floods does not starve the others.
            for _ in 0..64 {
                if !open[from] {
                    break;
                }
                match recv(&ports[from], &mut frame[..], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => open[from] = false,
                    Ok((size, _)) => {
                        pcap.write(&frame[..size])?;
                        counts.frames += 1;
                        let to = destinations(&mut homes, &frame[..size], from, ports.len());
                        for to in to.into_iter().filter(|to| open[*to]) {
                            counts.dropped += u64::from(!deliver(&ports[to], &frame[..size]));
                        }
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    // Somebody's UDP socket is not there yet.
                    Err(Errno::CONNREFUSED) => break,
                    Err(_) => open[from] = false,
                }
            }
        }
        if end {
            pcap.flush()?;
            return Ok(counts);
        }
    }
}

/// The ports that a frame goes to: where its destination was last heard, or all others.
fn destinations(
    homes: &mut HashMap<[u8; 6], usize>,
    frame: &[u8],
    from: usize,
    ports: usize,
) -> Vec<usize> {
    let address = |start: usize| frame.get(start..start + 6).and_then(|it| it.try_into().ok());
    let (Some(destination), Some(source)) = (address(0), address(6)) else {
        return Vec::new();
    };
    homes.insert(source, from);
    let group: bool = destination[0] & 1 == 1;
    match homes.get(&destination) {
        Some(home) if !group => (*home != from).then_some(*home).into_iter().collect(),
        _ => (0..ports).filter(|port| *port != from).collect(),
    }
}

/// Whether the frame was taken.
fn deliver(port: impl AsFd, frame: &[u8]) -> bool {
    for _ in 0..2 {
        match send(&port, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => return true,
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(&port, PollFlags::OUT)];
                let _ = poll(&mut fds, Some(&BUSY));
            }
            Err(_) => return false,
        }
    }
    false
}

/// Writes the pcap format, with nanoseconds.
struct Pcap<W: Write> {
    to: W,
}

impl<W: Write> Pcap<W> {
    fn new(mut to: W) -> Result<Pcap<W>> {
        // magic, version 2.4, time zone, accuracy, longest frame, Ethernet
        for field in [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, FRAME_SIZE_MAX as u32, 1] {
            to.write_all(&field.to_le_bytes())?;
        }
        Ok(Pcap { to })
    }

    fn write(&mut self, frame: &[u8]) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let size = frame.len() as u32;
        for field in [now.as_secs() as u32, now.subsec_nanos(), size, size] {
            self.to.write_all(&field.to_le_bytes())?;
        }
        Ok(self.to.write_all(frame)?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.to.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        [&to[..], &from[..], b"\x08\x00data"].concat()
    }

    #[test]
    fn a_switch_learns_where_stations_are() {
        let mut homes = HashMap::new();
        assert_eq!(destinations(&mut homes, &frame([0xff; 6], A), 0, 3), [1, 2]);
        assert_eq!(destinations(&mut homes, &frame(A, B), 1, 3), [0]);
        assert_eq!(destinations(&mut homes, &frame(B, A), 0, 3), [1]);
        assert_eq!(destinations(&mut homes, &frame(A, A), 0, 3), [0; 0]);
        assert_eq!(destinations(&mut homes, b"short", 0, 3), [0; 0]);
    }

    #[test]
    fn frames_cross_and_are_captured() {
        let path = std::env::temp_dir().join(format!("elver-switch-{}.pcap", std::process::id()));
        let (a, a_end) = wire().unwrap();
        let (b, addresses) = udp_wire().unwrap();
        let (theirs, ours) = addresses["udp:".len()..].split_once(',').unwrap();
        let program = UdpSocket::bind(theirs).unwrap();
        program.connect(ours).unwrap();
        let switch = Switch::start(vec![a, b], &path).unwrap();

        send(&a_end, &frame([0xff; 6], A), SendFlags::empty()).unwrap();
        let mut buffer = [0; 100];
        let size = program.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..size], frame([0xff; 6], A));
        program.send(&frame(A, B)).unwrap();
        let (size, _) = recv(&a_end, &mut buffer[..], RecvFlags::empty()).unwrap();
        assert_eq!(buffer[..size], frame(A, B));

        assert_eq!(switch.stop().unwrap(), Counts { frames: 2, dropped: 0 });
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len(), 24 + 2 * (16 + 18));
        assert_eq!(written[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
        std::fs::remove_file(path).unwrap();
    }
}
