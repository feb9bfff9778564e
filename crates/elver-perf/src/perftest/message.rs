//! What perftest's two ends tell each other, byte for byte: fields of fixed length, some text and
//! some numbers in network order.

use anyhow::{Context, Result, bail, ensure};
use elver_verbs::Mtu;

use crate::peers::Remote;

/// Bytes of a version.
pub(crate) const VERSION_LEN: usize = 16;
/// The version that we speak: that of perftest 4.5, whose exchange has not changed for years.
pub(crate) const VERSION: &str = "6.06";
/// The oldest version that takes part, as perftest has it.
const VERSION_MIN: f64 = 5.70;
/// Bytes of an MTU.
pub(crate) const MTU_LEN: usize = 2;
/// Bytes of the keys, with a GID.
pub(crate) const KEYS_LEN: usize = 108;
/// What each end sends last, and nobody reads.
pub(crate) const DONE: &[u8; 5] = b"done\0";
/// Digits of the fields of the keys before the GID and behind it.
const HEAD: [(&str, usize); 6] =
    [("LID", 4), ("OUT", 4), ("QPN", 6), ("PSN", 6), ("RKey", 8), ("VAddr", 16)];
const FORM: &str = "LID:OUT:QPN:PSN:RKey:VAddr:(16 × GID byte):SRQn:, hexadecimal, and a NUL";

/// One end's QP and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// READs that it serves at once.
    pub(crate) out_reads: u8,
    pub(crate) remote: Remote,
    pub(crate) rkey: u32,
    pub(crate) vaddr: u64,
}

impl Keys {
    /// Writes the keys. RoCE has no LIDs, and an SRQ number is DC's: both are 0.
    pub(crate) fn write(&self) -> [u8; KEYS_LEN] {
        let Remote { qpn, psn, gid } = self.remote;
        let gid: Vec<String> = gid.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "0000:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:{}:00000000:\0",
            self.out_reads,
            qpn & 0xff_ffff,
            psn & 0xff_ffff,
            self.rkey,
            self.vaddr,
            gid.join(":")
        );
        let mut message = [0; KEYS_LEN];
        message.copy_from_slice(text.as_bytes());
        message
    }

    /// Reads the keys.
    pub(crate) fn read(message: &[u8; KEYS_LEN]) -> Result<Keys> {
        Keys::parse(message).with_context(|| {
            format!("the peer sent \"{}\"; expected was {FORM}", message.escape_ascii())
        })
    }

    fn parse(message: &[u8; KEYS_LEN]) -> Result<Keys> {
        let text = std::str::from_utf8(message)?;
        let text = text.strip_suffix(":\0").context("it does not end with a colon and NUL")?;
        let mut fields = text.split(':');
        let mut next = |name: &str, digits: usize| -> Result<u64> {
            let field = fields.next().with_context(|| format!("it has no {name}"))?;
            let hex = field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit());
            ensure!(hex, "its {name} is {field:?}, not {digits} hexadecimal digits");
            Ok(u64::from_str_radix(field, 16)?)
        };
        let mut head = [0; HEAD.len()];
        for (value, (name, digits)) in head.iter_mut().zip(HEAD) {
            *value = next(name, digits)?;
        }
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = next("GID byte", 2)? as u8;
        }
        next("SRQn", 8)?;
        ensure!(fields.next().is_none(), "it has too many fields");
        let [_, out_reads, qpn, psn, rkey, vaddr] = head;
        Ok(Keys {
            out_reads: out_reads.min(u8::MAX.into()) as u8,
            remote: Remote { qpn: qpn as u32, psn: psn as u32, gid },
            rkey: rkey as u32,
            vaddr,
        })
    }
}

/// Writes our version.
pub(crate) fn write_version() -> [u8; VERSION_LEN] {
    let mut message = [0; VERSION_LEN];
    message[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    message
}

/// Reads a version, and refuses one that is too old.
pub(crate) fn read_version(message: &[u8; VERSION_LEN]) -> Result<String> {
    let text = text(message);
    let number = text.as_ref().and_then(|text| text.parse::<f64>().ok());
    let (Some(text), Some(number)) = (text, number) else {
        bail!(
            "the peer sent \"{}\"; expected was the version of a perftest program, such as \
             {VERSION}; is it one?",
            message.escape_ascii()
        );
    };
    ensure!(number >= VERSION_MIN, "the peer is perftest {text}; from {VERSION_MIN} on it works");
    Ok(text.to_string())
}

/// Writes a path MTU: its code, as text.
pub(crate) fn write_mtu(mtu: Mtu) -> [u8; MTU_LEN] {
    [b'0' + mtu.code(), 0]
}

/// Reads a path MTU.
pub(crate) fn read_mtu(message: &[u8; MTU_LEN]) -> Result<Mtu> {
    let code = text(message).and_then(|text| text.parse().ok());
    code.and_then(Mtu::from_code).with_context(|| {
        format!(
            "the peer sent \"{}\"; expected was the code of a path MTU, 1 to 5",
            message.escape_ascii()
        )
    })
}

/// The text before the NULs that fill a field.
fn text(message: &[u8]) -> Option<&str> {
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
    std::str::from_utf8(&message[..end]).ok()
}

/// What a test of the rate came to. Each field travels by itself, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct RateReport {
    pub(crate) size: u64,
    pub(crate) iters: u64,
    /// 2^20 bytes a second; 0 when it was not measured.
    pub(crate) peak: f64,
    /// 2^20 bytes a second.
    pub(crate) average: f64,
    /// 10^6 messages a second.
    pub(crate) messages: f64,
}

/// Bytes of a field of a report.
pub(crate) const REPORT_FIELD: usize = 8;

impl RateReport {
    pub(crate) fn write(&self) -> [[u8; REPORT_FIELD]; 5] {
        let RateReport { size, iters, peak, average, messages } = *self;
        [
            size.to_be_bytes(),
            iters.to_be_bytes(),
            peak.to_be_bytes(),
            average.to_be_bytes(),
            messages.to_be_bytes(),
        ]
    }

    pub(crate) fn read(fields: [[u8; REPORT_FIELD]; 5]) -> RateReport {
        let [size, iters, peak, average, messages] = fields;
        RateReport {
            size: u64::from_be_bytes(size),
            iters: u64::from_be_bytes(iters),
            peak: f64::from_be_bytes(peak),
            average: f64::from_be_bytes(average),
            messages: f64::from_be_bytes(messages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let gid = std::net::Ipv4Addr::new(10, 77, 0, 2).to_ipv6_mapped().octets();
        let remote = Remote { qpn: 0x12, psn: 0xfedcba, gid };
        Keys { out_reads: 16, remote, rkey: 0x1234, vaddr: 0x7f00_dead_b000 }
    }

    #[test]
    fn keys_are_what_the_original_writes_and_return() {
        let message = keys().write();
        let text = "0000:0010:000012:fedcba:00001234:00007f00deadb000:00:00:00:00:00:00:00:00:00:\
                    00:ff:ff:0a:4d:00:02:00000000:\0";
        assert_eq!(std::str::from_utf8(&message).unwrap(), text);
        assert_eq!(Keys::read(&message).unwrap(), keys());
    }

    #[test]
    fn garbage_is_told_with_what_was_expected() {
        let good = keys().write();
        for at in 0..KEYS_LEN {
            for byte in [b'x', 0xff, b'+'] {
                let mut bad = good;
                bad[at] = byte;
                let error = format!("{:#}", Keys::read(&bad).unwrap_err());
                assert!(error.contains("expected was LID:"), "{error}");
            }
        }
        assert!(Keys::read(&[b':'; KEYS_LEN]).is_err());
    }

    #[test]
    fn versions_return_and_old_or_foreign_ones_are_refused() {
        assert_eq!(read_version(&write_version()).unwrap(), VERSION);
        assert!(read_version(b"5.60\0\0\0\0\0\0\0\0\0\0\0\0").is_err());
        assert_eq!(read_version(b"6.20\0garbagemore").unwrap(), "6.20");
        let error = read_version(b"{\"version\":1,\"op").unwrap_err().to_string();
        assert!(error.contains("version") && error.contains("expected was"), "{error}");
        assert!(read_version(&[0; 16]).is_err());
        assert!(read_version(&[0xff; 16]).is_err());
    }

    #[test]
    fn mtus_return_and_others_are_refused() {
        for mtu in Mtu::ALL {
            assert_eq!(read_mtu(&write_mtu(mtu)).unwrap(), mtu);
        }
        for bad in [*b"6\0", *b"0\0", *b"\0\0", *b"xx", [0xff, 0]] {
            assert!(read_mtu(&bad).unwrap_err().to_string().contains("expected was"));
        }
    }

    #[test]
    fn reports_return() {
        let report =
            RateReport { size: 65536, iters: 5000, peak: 0.0, average: 1.5, messages: 0.25 };
        assert_eq!(RateReport::read(report.write()), report);
    }
}
