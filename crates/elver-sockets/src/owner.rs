//! Whose a TCP socket of this host is, as the kernel tells everybody.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

/// As Linux has it without a setting.
const OVERFLOW_USER: u32 = 65_534;

/// The user whose socket is at `local` and connected to `remote`; none if there is no such socket.
pub(crate) fn of(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    // An IPv4 connection may be an IPv6 socket's.
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|file| {
        let lines = BufReader::new(File::open(file).ok()?).lines();
        lines.map_while(Result::ok).find_map(|line| {
            let (here, there, uid) = entry(&line)?;
            (here == local && there == remote).then_some(uid)
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

/// Its own address, its peer's and its user, of a line of such a file (proc(5)).
fn entry(line: &str) -> Option<(SocketAddr, SocketAddr, u32)> {
    let mut words = line.split_whitespace();
    let (local, remote) = (words.nth(1)?, words.next()?);
    Some((address(local)?, address(remote)?, words.nth(4)?.parse().ok()?))
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

    use super::*;

    #[test]
    fn a_socket_is_its_user_s() {
        for listens in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(listens).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, there) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(of(here, there), Some(own));
            drop(listener.accept().unwrap());
            assert_eq!(of(here, SocketAddr::new(there.ip(), 1)), None);
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
        assert_eq!(entry(line), Some((expected.0, expected.1, 1000)));
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
