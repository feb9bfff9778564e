//! The TCP connection over which the two ends tell each other of their QPs: messages of known
//! lengths, each waited for within bounds.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;

/// How often the connection is looked at while the device runs.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

pub(crate) struct Talk {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Talk {
    /// Connects to a server.
    pub(crate) fn connect(server: SocketAddr, wait: Duration) -> Result<Talk> {
        let stream = TcpStream::connect_timeout(&server, wait)
            .with_context(|| format!("no server answers at {server}; start one there first"))?;
        Talk::over(stream, server, wait)
    }

    /// Waits for one client.
    pub(crate) fn accept(
        bind: Option<IpAddr>,
        port: u16,
        wait: Option<Duration>,
        write_wait: Duration,
    ) -> Result<Talk> {
        let listener = listen(bind, port)?;
        eprintln!("waiting for a client on TCP {}", listener.local_addr()?);
        let start = Instant::now();
        loop {
            let left = wait.map(|wait| wait.saturating_sub(start.elapsed()));
            let timeout = left.map(Timespec::try_from).transpose().context("--wait")?;
            match poll(&mut [PollFd::new(&listener, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => bail!("no client came in {} s", wait.unwrap_or_default().as_secs_f64()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("poll"),
            }
        }
        let (stream, peer) = listener.accept().context("accept")?;
        Talk::over(stream, peer, write_wait)
    }

    fn over(stream: TcpStream, peer: SocketAddr, write_wait: Duration) -> Result<Talk> {
        stream.set_write_timeout(Some(write_wait))?;
        stream.set_nodelay(true)?;
        Ok(Talk { stream, peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()) })
    }

    /// The address that the other end knows us by.
    pub(crate) fn own_address(&self) -> Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, bytes: &[u8], what: &str) -> Result<()> {
        let peer = self.peer;
        self.stream.write_all(bytes).with_context(|| format!("cannot send {what} to {peer}"))
    }

    /// Waits until `bytes` is full. `beside` runs meanwhile and tells whether there was any sign
    /// of life from the peer elsewhere; without one for `silence`, the wait fails.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        what: &str,
        silence: Duration,
        mut beside: impl FnMut() -> bool,
    ) -> Result<()> {
        let peer = self.peer;
        let mut got = 0;
        let mut heard = Instant::now();
        let mut looked: Option<Instant> = None;
        while got < bytes.len() {
            let busy = beside();
            let now = Instant::now();
            if busy {
                heard = now;
            }
            if looked.is_some_and(|looked| now - looked < LOOK_INTERVAL) {
                continue;
            }
            looked = Some(now);
            match recv(&self.stream, &mut bytes[got..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => bail!(
                    "{peer} closed the connection when we waited for {what}{}; \
                     what it prints may tell why",
                    so_far(&bytes[..got])
                ),
                Ok((_, count)) => {
                    got += count;
                    heard = now;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("waiting for {what} from {peer}"));
                }
            }
            if now - heard > silence {
                bail!(
                    "{peer} did nothing for {} s when we waited for {what}, {} bytes{}",
                    silence.as_secs_f64(),
                    bytes.len(),
                    so_far(&bytes[..got])
                );
            }
        }
        Ok(())
    }
}

/// What came of a message, for an error.
fn so_far(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return String::new();
    }
    format!(", and only {} came: \"{}\"", bytes.len(), bytes.escape_ascii())
}

/// Listens on one address, or on all.
fn listen(bind: Option<IpAddr>, port: u16) -> Result<TcpListener> {
    let told = |at: SocketAddr| {
        move || format!("cannot listen on TCP {at}; is another server there? --port takes another")
    };
    if let Some(own) = bind {
        let at = SocketAddr::new(own, port);
        return TcpListener::bind(at).with_context(told(at));
    }
    // The IPv6 wildcard takes IPv4 as well, where there is IPv6.
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| {
        let at = (Ipv4Addr::UNSPECIFIED, port);
        TcpListener::bind(at).with_context(told(at.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn pair() -> (Talk, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let talk = Talk::connect(at, LONG).unwrap();
        (talk, listener.accept().unwrap().0)
    }

    #[test]
    fn pieces_make_a_message() {
        let (mut talk, mut other) = pair();
        other.write_all(b"he").unwrap();
        other.write_all(b"llo and more").unwrap();
        let mut bytes = [0; 5];
        talk.receive(&mut bytes, "a greeting", LONG, || false).unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn silence_and_an_end_are_told() {
        let (mut talk, mut other) = pair();
        other.write_all(b"ab\0").unwrap();
        let error = talk.receive(&mut [0; 5], "a greeting", SHORT, || false).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a greeting") && text.contains(r#""ab\x00""#), "{text}");
        drop(other);
        let error = talk.receive(&mut [0; 5], "a parting", LONG, || false).unwrap_err();
        assert!(error.to_string().contains("closed the connection when we waited for a parting"));
    }

    #[test]
    fn a_sign_of_life_elsewhere_prolongs_the_wait() {
        let (mut talk, mut other) = pair();
        let start = Instant::now();
        let mut sent = false;
        talk.receive(&mut [0; 1], "a byte", SHORT, || {
            if start.elapsed() > 4 * SHORT && !sent {
                sent = true;
                other.write_all(b"x").unwrap();
            }
            true
        })
        .unwrap();
    }
}
