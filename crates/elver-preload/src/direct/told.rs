//! What entries of a table say, as the words that they are.

use std::net::IpAddr;

use elver_soft::Reach;
use elver_verbs::{AccessFlags, RemoteAddr};

/// Words of an entry behind its number.
pub(crate) type Rest = [u64; 6];

/// What a QP lets its peer do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) dest_qpn: u32,
    /// The address of its peer's device.
    pub(crate) dest: IpAddr,
    pub(crate) pd: u32,
    pub(crate) access: AccessFlags,
    /// READs that it answers at once.
    pub(crate) reads: u8,
}

/// A region: what its key opens, and where its first byte is in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) reach: Reach,
    pub(crate) address: u64,
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Door {
    pub(crate) fn words(&self) -> Rest {
        let dest = bits(self.dest);
        let rights = two(self.access.bits(), self.reads.into());
        [two(self.dest_qpn, self.pd), rights, dest as u64, (dest >> 64) as u64, 0, 0]
    }

    /// The PD of the QP, if it lets the QP `qpn` of the device at `own` do this.
    #[inline]
    pub(crate) fn admits(words: &Rest, own: IpAddr, qpn: u32, access: AccessFlags) -> Option<u32> {
        let ((dest_qpn, pd), (rights, reads)) = (halves(words[0]), halves(words[1]));
        let dest = u128::from(words[3]) << 64 | u128::from(words[2]);
        let lets = AccessFlags::from_bits_truncate(rights).contains(access)
            && (reads > 0 || access != AccessFlags::REMOTE_READ);
        (dest_qpn == qpn && dest == bits(own) && lets).then_some(pd)
    }
}

impl Place {
    pub(crate) fn words(&self) -> Rest {
        let Place { reach: Reach { pd, base, length, access, .. }, address } = *self;
        [two(pd, access.bits()), base, length, address, 0, 0]
    }

    #[inline]
    pub(crate) fn of(rkey: u32, words: &Rest) -> Place {
        let (pd, access) = halves(words[0]);
        let access = AccessFlags::from_bits_truncate(access);
        Place {
            reach: Reach { rkey, pd, base: words[1], length: words[2], access },
            address: words[3],
        }
    }

    /// Where in its process an access through a QP of `pd` begins, if it lies within the region, and that within memory.
    #[inline]
    pub(crate) fn grants(
        &self,
        pd: u32,
        remote: RemoteAddr,
        length: u64,
        access: AccessFlags,
    ) -> Option<u64> {
        let offset = self.reach.grants(pd, remote.rkey, remote.addr, length, access)?;
        let first = self.address.checked_add(offset)?;
        first.checked_add(length).map(|_| first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 64, 0, 9));

    #[test]
    fn a_door_opens_for_its_peer_alone() {
        let access = AccessFlags::REMOTE_WRITE;
        let door = Door { dest_qpn: 7, dest: OWN, pd: 3, access, reads: 0 };
        let words = door.words();
        assert_eq!(Door::admits(&words, OWN, 7, access), Some(3));
        assert_eq!(Door::admits(&words, OWN, 8, access), None);
        assert_eq!(Door::admits(&words, IpAddr::from([127, 64, 0, 8]), 7, access), None);
        let reads = AccessFlags::REMOTE_READ;
        assert_eq!(Door::admits(&words, OWN, 7, reads), None);
        // It answers no READs, whatever it grants.
        let none = Door { access: reads, ..door }.words();
        assert_eq!(Door::admits(&none, OWN, 7, reads), None);
        assert_eq!(
            Door::admits(&Door { access: reads, reads: 1, ..door }.words(), OWN, 7, reads),
            Some(3)
        );
    }

    #[test]
    fn a_region_opens_to_its_end() {
        let access = AccessFlags::REMOTE_READ;
        let reach = Reach { rkey: 0x705, pd: 3, base: 0x1000, length: 16, access };
        let place = Place { reach, address: 0x7000 };
        assert_eq!(Place::of(0x705, &place.words()), place);
        let grants = |pd, rkey, va, length| reach.grants(pd, rkey, va, length, access);
        assert_eq!(grants(3, 0x705, 0x1008, 8), Some(8));
        for (pd, rkey, va, length) in [
            (4, 0x705, 0x1008, 8),
            (3, 0x706, 0x1008, 8),
            (3, 0x705, 0x1009, 8),
            (3, 0x705, 0xfff, 8),
            (3, 0x705, 0x1008, u64::MAX),
            (3, 0x705, u64::MAX, 8),
        ] {
            assert_eq!(grants(pd, rkey, va, length), None, "{pd} {rkey:#x} {va:#x} {length}");
        }
        assert_eq!(reach.grants(3, 0x705, 0x1008, 8, AccessFlags::REMOTE_WRITE), None);
    }

    #[test]
    fn a_region_that_is_told_to_lie_beyond_all_memory_is_not_reached() {
        let access = AccessFlags::REMOTE_READ;
        let reach = Reach { rkey: 0x705, pd: 3, base: 0x1000, length: 1 << 32, access };
        let remote = RemoteAddr { addr: 0x1800, rkey: 0x705 };
        let first = |address| Place { reach, address }.grants(3, remote, 8, access);
        assert_eq!(first(0x7000), Some(0x7800));
        for beyond in 0..=0x808 {
            let found = first(u64::MAX - beyond);
            assert_eq!(found, (beyond == 0x808).then_some(u64::MAX - 8), "{beyond}");
        }
    }
}
