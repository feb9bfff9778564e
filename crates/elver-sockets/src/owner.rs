//! Whose a TCP socket of this host is, as the kernel tells everybody.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use crate::diag::{self, Unanswered};

/// As Linux has it without a setting.
const OVERFLOW_USER: u32 = 65_534;

/// The user whose socket is at `local` and connected to `remote`; none if nobody has such a socket.
pub(crate) fn of(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    diag::user(local, remote).unwrap_or_else(|Unanswered| listed(local, remote))
}

/// The same, by a look through all of the host's sockets.
fn listed(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    // An IPv4 connection may be an IPv6 socket's.
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|file| {
        let lines = BufReader::new(File::open(file).ok()?).lines();
        lines.map_while(Result::ok).find_map(|line| {
            let (here, there, user) = entry(&line)?;
            (here == local && there == remote).then_some(user)?
        })
    })
}

/// Whether the kernel means one user by this number. In a user namespace, all those that have none in it have the same one.
pub(crate) fn is_known(user: u32) -> bool {
    static OVERFLOW: OnceLock<Option<u32>> = OnceLock::new();
    let overflow = OVERFLOW.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if names_all(&map) {
            return None;
        }
        let user = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        Some(user.and_then(|user| user.trim().parse().ok()).unwrap_or(OVERFLOW_USER))
    });
    *overflow != Some(user)
}

/// Whether such a map (user_namespaces(7)) has a number for each user.
fn names_all(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u32::MAX.into()
}

/// Its own address, its peer's and its user, if it is anybody's, of a line of such a file (proc(5)).
fn entry(line: &str) -> Option<(SocketAddr, SocketAddr, Option<u32>)> {
    let mut words = line.split_whitespace();
    let (local, remote) = (words.nth(1)?, words.next()?);
    let (user, inode) = (words.nth(4)?.parse().ok()?, words.nth(1)?);
    // Of one that no process has open it says root's.
    Some((address(local)?, address(remote)?, (inode != "0").then_some(user)))
}

/// An address as the kernel prints it: words of 32 bits, each as this machine has it in memory.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// Both ways say the same.
    fn told(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let told = of(local, remote);
        assert_eq!(listed(local, remote), told, "{local} to {remote}");
        told
    }

    /// Where a listener is that takes IPv4 connections too, if it has an IPv6 address.
    fn reached(listener: &TcpListener, ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), listener.local_addr().unwrap().port())
    }

    #[test]
    fn a_socket_is_its_user_s_as_long_as_a_process_has_it_open() {
        let own = Some(rustix::process::geteuid().as_raw());
        for (listens, ip) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let listener = TcpListener::bind(listens).unwrap();
            let client = TcpStream::connect(reached(&listener, ip)).unwrap();
            let (here, there) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(told(here, there), own);
            let (server, _) = listener.accept().unwrap();
            assert_eq!(told(there, here), own, "of {listens}");
            assert_eq!(told(here, SocketAddr::new(there.ip(), 1)), None);
            // Closed first, it is what nobody has for a minute.
            drop(client);
            assert_eq!(told(here, there), None);
            drop(server);
            assert_eq!((told(here, there), told(there, here)), (None, None), "of {listens}");
        }
    }

    #[test]
    fn another_user_s_socket_is_his() {
        const OTHER: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: only root can\n");
            return;
        }
        for (listens, ip) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            let listener = TcpListener::bind(listens).unwrap();
            let at = reached(&listener, ip);
            let script = format!("exec 3<>/dev/tcp/{}/{} && read -r line <&3", at.ip(), at.port());
            let mut client = Command::new("bash").args(["-c", &script]).uid(OTHER).spawn().unwrap();
            let (server, _) = listener.accept().unwrap();
            let (here, there) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
            let there = SocketAddr::new(there.ip().to_canonical(), there.port());
            let here = SocketAddr::new(here.ip().to_canonical(), here.port());
            assert_eq!(told(there, here), Some(OTHER));
            assert_eq!(told(here, there), Some(0));
            drop(server);
            client.wait().unwrap();
            assert_eq!((told(there, here), told(here, there)), (None, None));
        }
    }

    #[test]
    fn users_without_a_number_are_not_one_user() {
        assert!(names_all("         0          0 4294967295\n"));
        assert!(!names_all("         0       1000          1\n         1     100000      65536\n"));
        assert!(!names_all(""));
        assert!(is_known(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn what_is_no_entry_is_none() {
        let line = "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 77";
        let expected = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.2:50000".parse().unwrap());
        assert_eq!(entry(line), Some((expected.0, expected.1, Some(1000))));
        let closed = line.replace("1000        0 77", "0        0 0");
        assert_eq!(entry(&closed), Some((expected.0, expected.1, None)));
        for at in 0..line.len() {
            // It is read or it is not, and never panics.
            let _ = entry(&line[..at]);
        }
        assert_eq!(
            entry(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"
            ),
            None
        );
    }
}
