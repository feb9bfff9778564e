//! What the device is compared with: the same sockets without it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use elver_console::Failure;
use elver_testbed::pair::{self, Placement};

/// UDP and TCP port of the baselines.
const PORT: u16 = 18_517;
/// Bytes that a TCP write hands over.
const CHUNK: usize = 1 << 20;
/// How long an end waits for a packet before it gives up.
const STALL: Duration = Duration::from_secs(60);

/// Round trips of a packet of `size` bytes, both sides spinning; the median in microseconds.
pub(crate) fn udp_ping_pong(
    placement: Placement,
    size: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    let (_, median) = pair::run(
        placement,
        |end, client| {
            let socket = udp((end.own, PORT).into())?;
            client.begin();
            let mut buf = [0; 4096];
            while !client.is_gone() {
                match socket.recv_from(&mut buf) {
                    Ok((len, from)) => drop(socket.send_to(&buf[..len], from)?),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        },
        |end| ping(&udp((end.own, PORT).into())?, (end.peer, PORT).into(), size, duration),
    )?;
    Ok(median)
}

fn udp(own: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(own)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn ping(socket: &UdpSocket, peer: SocketAddr, size: usize, duration: Duration) -> Result<f64> {
    let mut times = Vec::new();
    let mut buf = [0; 4096];
    let start = Instant::now();
    let mut sent = start;
    // A figure needs one at least.
    while start.elapsed() < duration || times.is_empty() {
        socket.send_to(&buf[..size.min(4096)], peer)?;
        loop {
            match socket.recv_from(&mut buf) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if sent.elapsed() > STALL {
                return Err(anyhow!("a packet was lost"));
            }
        }
        let now = Instant::now();
        times.push((now - sent).as_nanos() as u64);
        sent = now;
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / 1e3)
}

/// Packets of `size` bytes a second that arrive, one by one with sendto and recvfrom.
pub(crate) fn udp_rate(
    placement: Placement,
    size: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    let arrived = AtomicU64::new(0);
    let (_, rate) = pair::run(
        placement,
        |end, client| {
            let socket = udp((end.own, PORT).into())?;
            client.begin();
            let mut buf = [0; 4096];
            let mut count = 0;
            while !client.is_gone() {
                if socket.recv_from(&mut buf).is_ok() {
                    count += 1;
                    arrived.store(count, Ordering::Relaxed);
                }
            }
            Ok(())
        },
        |end| {
            let socket = udp((end.own, PORT).into())?;
            let buf = [0; 4096];
            let start = Instant::now();
            while start.elapsed() < duration {
                for _ in 0..64 {
                    // A full socket drops, as the real sender's would.
                    let _ = socket.send_to(&buf[..size.min(4096)], (end.peer, PORT));
                }
            }
            let rate = arrived.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
            Ok(rate)
        },
    )?;
    Ok(rate)
}

/// A TCP stream of 1 MB writes, in Gbit/s.
pub(crate) fn tcp_stream(placement: Placement, duration: Duration) -> Result<f64, Failure> {
    let (received, seconds) = pair::run(
        placement,
        |end, client| {
            let listener = TcpListener::bind((end.own, PORT))?;
            client.begin();
            let (mut stream, _) = client.accept(&listener)?;
            let mut buf = vec![0; CHUNK];
            let mut total = 0u64;
            loop {
                match stream.read(&mut buf)? {
                    0 => return Ok(total),
                    len => total += len as u64,
                }
            }
        },
        |end| {
            let mut stream = TcpStream::connect((end.peer, PORT))?;
            let buf = vec![0; CHUNK];
            let start = Instant::now();
            while start.elapsed() < duration {
                stream.write_all(&buf)?;
            }
            drop(stream);
            Ok(start.elapsed().as_secs_f64())
        },
    )?;
    Ok(received as f64 * 8.0 / 1e9 / seconds)
}
