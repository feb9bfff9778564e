//! Requests over HTTP, which come in pieces. Who says nothing, or little, holds nobody up.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long one asker may take.
pub(super) const ASKER_WAIT: Duration = Duration::from_millis(500);
/// Bytes of the longest request that is read.
const BYTES_MAX: usize = 4_096;
/// Who asks, and has not said what, at once. The one that has been here longest gives way to the next.
const ASKERS_MAX: usize = 64;

/// Those who are asking.
#[derive(Default)]
pub(super) struct Requests(VecDeque<Asker>);

struct Asker {
    stream: TcpStream,
    until: Instant,
    said: Vec<u8>,
}

/// How far one has come.
enum Heard {
    Some,
    All,
    Gone,
}

impl Requests {
    /// Takes in who has come.
    pub(super) fn add(&mut self, stream: TcpStream, now: Instant) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        if self.0.len() >= ASKERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Asker { stream, until: now + ASKER_WAIT, said: Vec::new() });
        Ok(())
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|asker| asker.stream.as_fd())
    }

    /// When the next one has had its time.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.front().map(|asker| asker.until)
    }

    /// The next one that has asked, and the head of its request. Who is gone, or has had its time, is forgotten.
    pub(super) fn next(&mut self, now: Instant) -> Option<(TcpStream, Vec<u8>)> {
        let mut at = 0;
        while let Some(asker) = self.0.get_mut(at) {
            let heard = asker.hear();
            if matches!(heard, Heard::Some) && now < asker.until {
                at += 1;
                continue;
            }
            let asker = self.0.remove(at)?;
            if let Heard::All = heard {
                return Some((asker.stream, asker.said));
            }
        }
        None
    }
}

impl Asker {
    fn hear(&mut self) -> Heard {
        let mut bytes = [0; 512];
        while !self.said.windows(4).any(|end| end == b"\r\n\r\n") {
            if self.said.len() > BYTES_MAX {
                return Heard::Gone;
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Heard::Gone,
                Ok(count) => self.said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Gone,
            }
        }
        Heard::All
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Takes in who connects.
    fn connected(listener: &TcpListener, to: &mut Requests, now: Instant) -> TcpStream {
        let asker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        to.add(listener.accept().unwrap().0, now).unwrap();
        asker
    }

    #[test]
    fn who_says_nothing_holds_nobody_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut requests, now) = (Requests::default(), Instant::now());
        let silent: Vec<_> =
            (0..ASKERS_MAX - 2).map(|_| connected(&listener, &mut requests, now)).collect();
        let mut slow = connected(&listener, &mut requests, now);
        slow.write_all(&REQUEST[..9]).unwrap();
        let mut asks = connected(&listener, &mut requests, now);
        asks.write_all(REQUEST).unwrap();
        let mut heard = || loop {
            if let Some((_, said)) = requests.next(now) {
                break said;
            }
        };
        assert_eq!(heard(), REQUEST);
        slow.write_all(&REQUEST[9..]).unwrap();
        assert_eq!(heard(), REQUEST);
        assert_eq!(requests.0.len(), silent.len());
        // More than may be there: the first goes.
        let more: Vec<_> = (0..3).map(|_| connected(&listener, &mut requests, now)).collect();
        assert_eq!(requests.0.len(), ASKERS_MAX);
        assert!(requests.next(now).is_none());
        assert_eq!(requests.due(), Some(now + ASKER_WAIT));
        assert!(requests.next(now + ASKER_WAIT).is_none() && requests.0.is_empty());
        drop((silent, more));
    }

    #[test]
    fn who_says_too_much_or_goes_is_forgotten() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut requests, now) = (Requests::default(), Instant::now());
        let mut much = connected(&listener, &mut requests, now);
        much.write_all(&[b'x'; 2 * BYTES_MAX]).unwrap();
        drop(connected(&listener, &mut requests, now));
        while !requests.0.is_empty() {
            assert!(requests.next(now).is_none());
        }
    }
}
