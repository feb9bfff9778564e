//! What of an address vector is kept for who asks.

use crate::layout::AhAttr;

/// What an address vector says that means nothing on Ethernet: who asks for it is told what was given, as by a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
}

/// Bits of a service level.
const SL: u8 = 0xf;

impl Service {
    pub(crate) fn of(attr: &AhAttr) -> Service {
        let AhAttr { sl, src_path_bits, static_rate, .. } = *attr;
        Service { sl: sl & SL, src_path_bits, static_rate }
    }

    pub(crate) fn tell(self, attr: &mut AhAttr) {
        (attr.sl, attr.src_path_bits) = (self.sl, self.src_path_bits);
        attr.static_rate = self.static_rate;
    }
}
