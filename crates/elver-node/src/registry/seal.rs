//! How two ends of a connection prove to each other that they know the cluster's secret.
//!
//! Each end says a nonce. From the secret and both nonces follow two keys, one for each direction,
//! and from the key and the number of a frame the seal of the frame (HMAC-SHA256): a sealed frame
//! cannot be made without the secret, nor sent again, left out, turned back, or carried to another
//! connection. The first that an end receives proves the other to it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::secret::Secret;

/// Bytes of a seal.
pub(super) const SEAL_BYTES: usize = 32;
/// Bytes of a nonce.
pub(super) const NONCE_BYTES: usize = 32;

/// What an end says once.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// The seals of one direction of a connection.
#[derive(Clone)]
pub(super) struct Seal {
    mac: Hmac<Sha256>,
    /// Frames that were sealed, or whose seal was right.
    count: u64,
}

/// Both directions of a connection, as one end sees them.
#[derive(Clone)]
pub(super) struct Seals {
    pub(super) ours: Seal,
    pub(super) theirs: Seal,
}

impl Seals {
    /// Those of the node that registers.
    pub(super) fn of_node(secret: &Secret, node: &Nonce, server: &Nonce) -> Seals {
        let seal = |direction| Seal::new(secret, direction, node, server);
        Seals { ours: seal(FROM_NODE), theirs: seal(FROM_SERVER) }
    }

    /// Those of the registry.
    pub(super) fn of_server(secret: &Secret, node: &Nonce, server: &Nonce) -> Seals {
        let Seals { ours, theirs } = Seals::of_node(secret, node, server);
        Seals { ours: theirs, theirs: ours }
    }
}

const FROM_NODE: &[u8] = b"elver registry 2, node to server";
const FROM_SERVER: &[u8] = b"elver registry 2, server to node";

impl Seal {
    fn new(secret: &Secret, direction: &[u8], node: &Nonce, server: &Nonce) -> Seal {
        // All three are of one length each, so that no two sets make one text.
        let key = keyed(secret.key())
            .chain_update(direction)
            .chain_update(node)
            .chain_update(server)
            .finalize()
            .into_bytes();
        Seal { mac: keyed(&key.into()), count: 0 }
    }

    /// The seal of the next frame.
    pub(super) fn next(&mut self, frame: &[u8]) -> [u8; SEAL_BYTES] {
        let seal = self.of_next(frame).finalize().into_bytes().into();
        self.count += 1;
        seal
    }

    /// Whether that is the seal of the next frame. The time that this takes does not depend on how
    /// much of it is right.
    pub(super) fn check(&mut self, frame: &[u8], seal: &[u8]) -> bool {
        let is_right = self.of_next(frame).verify_slice(seal).is_ok();
        self.count += u64::from(is_right);
        is_right
    }

    /// Whether nothing was sealed, or proven by a seal, so far.
    pub(super) fn is_fresh(&self) -> bool {
        self.count == 0
    }

    fn of_next(&self, frame: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(self.count.to_le_bytes()).chain_update(frame)
    }
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seals(…)")
    }
}

/// HMAC with a key that is shorter than a block, and therefore filled up with zeros.
fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    Hmac::new(&block.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Nonce = [1; NONCE_BYTES];
    const SERVER: Nonce = [2; NONCE_BYTES];

    fn pair(ours: &[u8], theirs: &[u8]) -> (Seals, Seals) {
        let node = Seals::of_node(&Secret::new(ours), &NODE, &SERVER);
        (node, Seals::of_server(&Secret::new(theirs), &NODE, &SERVER))
    }

    #[test]
    fn it_is_hmac_sha256() {
        // RFC 4231, case 1: the key is 20 bytes of 0x0b, and zeros behind it change nothing.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let mac = keyed(&key).chain_update(b"Hi There").finalize().into_bytes();
        assert_eq!(mac[..8], [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53]);
        assert_eq!(mac[28..], [0x2e, 0x32, 0xcf, 0xf7]);
    }

    #[test]
    fn each_end_knows_the_others_frames() {
        let (mut node, mut server) = pair(b"the secret", b"the secret");
        for frame in [&b"one"[..], b"two", b"two", b""] {
            let seal = node.ours.next(frame);
            assert!(server.theirs.check(frame, &seal));
            let seal = server.ours.next(frame);
            assert!(node.theirs.check(frame, &seal));
        }
    }

    #[test]
    fn what_is_not_the_next_frame_is_known() {
        let sealed = || {
            let (mut node, server) = pair(b"the secret", b"the secret");
            (node.ours.next(b"one"), node.ours.next(b"two"), server)
        };
        // Another frame, one that was changed, left out, sent twice or turned back.
        let (first, second, mut server) = sealed();
        assert!(!server.theirs.check(b"One", &first));
        let (first, _, mut server) = sealed();
        assert!(!server.theirs.check(b"one", &first[..SEAL_BYTES - 1]));
        let (_, _, mut server) = sealed();
        assert!(!server.theirs.check(b"two", &second));
        let (first, _, mut server) = sealed();
        assert!(server.theirs.check(b"one", &first));
        assert!(!server.theirs.check(b"one", &first));
        let (first, _, _) = sealed();
        let (mut node, _) = pair(b"the secret", b"the secret");
        assert!(!node.theirs.check(b"one", &first));
    }

    #[test]
    fn another_secret_or_nonce_makes_another_seal() {
        let (mut node, mut server) = pair(b"the secret", b"another secret");
        assert!(!server.theirs.check(b"one", &node.ours.next(b"one")));
        let secret = Secret::new(b"the secret");
        let mut node = Seals::of_node(&secret, &NODE, &SERVER);
        let seal = node.ours.next(b"one");
        for (node, server) in [(NODE, NODE), (SERVER, SERVER), (SERVER, NODE)] {
            let mut server = Seals::of_server(&secret, &node, &server);
            assert!(!server.theirs.check(b"one", &seal));
        }
    }
}
