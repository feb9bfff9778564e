/// The code of an RNR NAK timer: 5 bits (IBTA 9.7.5.2.8, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

/// Table 45 in units of 10 µs. Code 0 is the longest; from code 1 on the times grow as 1, 2, 3, 4,
/// 6, 8, 12, … : each pair is 1.0 and 1.5 times a power of two.
const RNR_10_US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// The timer of a code of 5 bits.
    pub const fn new(code: u8) -> Option<RnrTimer> {
        if code < 32 { Some(RnrTimer(code)) } else { None }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long a sender waits, in nanoseconds: 10 µs to 655.36 ms.
    #[inline]
    pub const fn duration_ns(self) -> u64 {
        RNR_10_US[self.0 as usize] as u64 * 10_000
    }

    /// The shortest timer of at least `ns` nanoseconds; the longest if there is none.
    pub fn at_least_ns(ns: u64) -> RnrTimer {
        let code = (1..32).find(|code| RnrTimer(*code).duration_ns() >= ns);
        RnrTimer(code.unwrap_or(0))
    }
}

/// The code of a local ACK timeout: 5 bits (IBTA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeout;

impl Timeout {
    /// 4.096 µs · 2^code in nanoseconds; none for code 0, which waits without bound. Only the low 5
    /// bits of the code count.
    #[inline]
    pub const fn duration_ns(code: u8) -> Option<u64> {
        match code & 0x1f {
            0 => None,
            code => Some(4_096 << code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry but the first follows from the rule of the table, so a slip of the pen shows.
    #[test]
    fn rnr_table_follows_its_rule() {
        for code in 1..32u8 {
            let expected = match code {
                1 => 1,
                _ if code % 2 == 0 => 1 << (code / 2),
                _ => 3 << ((code - 3) / 2),
            };
            assert_eq!(RNR_10_US[usize::from(code)], expected, "code {code}");
        }
        assert_eq!(RnrTimer::new(0).unwrap().duration_ns(), 655_360_000);
        assert_eq!(RnrTimer::new(31).unwrap().duration_ns(), 491_520_000);
        assert_eq!(RnrTimer::new(32), None);
    }

    #[test]
    fn at_least_finds_the_shortest() {
        assert_eq!(RnrTimer::at_least_ns(0).code(), 1);
        assert_eq!(RnrTimer::at_least_ns(10_001).code(), 2);
        assert_eq!(RnrTimer::at_least_ns(600_000_000).code(), 0);
    }

    #[test]
    fn timeouts_double() {
        assert_eq!(Timeout::duration_ns(0), None);
        assert_eq!(Timeout::duration_ns(1), Some(8_192));
        assert_eq!(Timeout::duration_ns(14), Some(67_108_864));
    }
}
