//! Who is said to have made the device.

use std::sync::OnceLock;

/// No vendor's OUI, as rdma_rxe says. With Mellanox's, UCX would write to the registers of its hardware.
const NO_VENDOR: u32 = 0xff_ffff;
/// The number of mlx5's virtual functions of any generation. perftest knows parts by their numbers alone, and has
/// DC, extended QPs and inline data only with those that it knows.
const PART: u32 = 0x101e;
/// A vendor's OUI in hexadecimal, for tests that run with one vendor's devices only, as rdma-core's of DC do.
const VENDOR: &str = "ELVER_VENDOR_ID";

/// `vendor_id` and `vendor_part_id`.
pub(crate) fn ids() -> (u32, u32) {
    static VENDOR_ID: OnceLock<u32> = OnceLock::new();
    let vendor = VENDOR_ID.get_or_init(|| {
        let told = std::env::var(VENDOR).ok();
        told.as_deref().and_then(oui).unwrap_or(NO_VENDOR)
    });
    (*vendor, PART)
}

/// An OUI, 24 bits.
fn oui(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).ok().filter(|oui| *oui <= NO_VENDOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendor_is_named_in_hexadecimal() {
        assert_eq!(oui("0x02c9"), Some(0x02c9));
        assert_eq!(oui("2c9"), Some(0x02c9));
        assert_eq!([oui(""), oui("mlx5"), oui("1000000")], [None; 3]);
    }
}
