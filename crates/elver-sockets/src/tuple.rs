//! Which TCP connection a socket is of.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::{SocketAddrAny, getpeername, getsockname, ipproto, sockopt};

/// Which end of a connection a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has called `connect`.
    Connector,
    /// It has called `accept`.
    Acceptor,
}

impl Side {
    /// The peer's.
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Connector => Side::Acceptor,
            Side::Acceptor => Side::Connector,
        }
    }
}

/// The addresses of a TCP connection, the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

impl Tuple {
    /// Of a TCP socket that is connected, or is being connected to `peer`; none of any other.
    pub(crate) fn of(fd: BorrowedFd<'_>, side: Side, peer: Option<SocketAddr>) -> Option<Tuple> {
        if sockopt::socket_protocol(fd).ok()?? != ipproto::TCP {
            return None;
        }
        let local = address(getsockname(fd).ok()?)?;
        let remote = match getpeername(fd) {
            Ok(remote) => address(remote?)?,
            // The kernel takes no address at all for one of this host, as `connect` does.
            Err(_) => match peer? {
                peer if peer.ip().is_unspecified() => SocketAddr::new(local.ip(), peer.port()),
                peer => canonical(peer),
            },
        };
        Some(match side {
            Side::Connector => Tuple { client: local, server: remote },
            Side::Acceptor => Tuple { client: remote, server: local },
        })
    }

    /// Whether both ends are of this host, as far as addresses tell.
    pub(crate) fn is_of_one_host(&self) -> bool {
        self.client.ip().is_loopback() || self.client.ip() == self.server.ip()
    }

    /// An end's own address, and its peer's.
    pub(crate) fn seen_by(&self, side: Side) -> (SocketAddr, SocketAddr) {
        match side {
            Side::Connector => (self.client, self.server),
            Side::Acceptor => (self.server, self.client),
        }
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client, self.server)
    }
}

fn address(any: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(any).ok().map(canonical)
}

/// An IPv4 address is one also where it is written as an IPv6 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ends_name_a_connection_alike() {
        for (listens, connects) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::1]:0", "::1")]
        {
            let listener = TcpListener::bind(listens).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((connects, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            let there = Tuple::of(client.as_fd(), Side::Connector, None).unwrap();
            let here = Tuple::of(server.as_fd(), Side::Acceptor, None).unwrap();
            assert_eq!(there, here);
            assert!(here.is_of_one_host());
            assert_eq!(there.seen_by(Side::Connector), (there.client, there.server));
            assert_eq!(there.seen_by(Side::Acceptor), (there.server, there.client));
            assert!(Tuple::of(listener.as_fd(), Side::Acceptor, None).is_none());
        }
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.connect("127.0.0.1:9").unwrap();
        assert!(Tuple::of(other.as_fd(), Side::Connector, None).is_none());
    }

    #[test]
    fn another_host_is_none_of_this_one() {
        let at = |text: &str| text.parse().unwrap();
        let (client, server) = (at("10.0.0.1:4000"), at("10.0.0.2:80"));
        assert!(!Tuple { client, server }.is_of_one_host());
        let server = at("10.0.0.1:80");
        assert!(Tuple { client, server }.is_of_one_host());
        assert_eq!(Tuple { client, server }.to_string(), "10.0.0.1:4000-10.0.0.1:80");
    }
}
