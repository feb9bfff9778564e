//! What the ping-pong programs of rdma-core tell each other: one line of fixed length in each
//! direction, `LID:QPN:PSN:GID` in hexadecimal digits and a NUL, and the client's closing "done".

use anyhow::{Context, Result, ensure};

use crate::peers::Remote;

/// Bytes of a message, with its NUL: the length that both ends read.
pub(crate) const LEN: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();
/// What the client ends the exchange with.
pub(crate) const DONE: &[u8; 5] = b"done\0";
const FORM: &str = "LLLL:QQQQQQ:PPPPPP:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG, hexadecimal, and a NUL";

/// Writes a message. RoCE has no LIDs: ours is 0, as rdma_rxe's.
pub(crate) fn write(own: &Remote) -> [u8; LEN] {
    let gid = u128::from_be_bytes(own.gid);
    let text = format!("0000:{:06x}:{:06x}:{gid:032x}\0", own.qpn & 0xff_ffff, own.psn & 0xff_ffff);
    let mut message = [0; LEN];
    message.copy_from_slice(text.as_bytes());
    message
}

/// Reads a message.
pub(crate) fn read(message: &[u8; LEN]) -> Result<Remote> {
    parse(message).with_context(|| {
        format!("the peer sent \"{}\"; expected was {FORM}", message.escape_ascii())
    })
}

fn parse(message: &[u8; LEN]) -> Result<Remote> {
    let text = std::str::from_utf8(message)?;
    let text = text.strip_suffix('\0').context("it does not end with NUL")?;
    let fields: Vec<&str> = text.split(':').collect();
    let &[lid, qpn, psn, gid] = fields.as_slice() else {
        anyhow::bail!("it has {} fields instead of 4", fields.len());
    };
    for (name, field, digits) in
        [("LID", lid, 4), ("QPN", qpn, 6), ("PSN", psn, 6), ("GID", gid, 32)]
    {
        ensure!(
            field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "its {name} is {field:?}, not {digits} hexadecimal digits"
        );
    }
    Ok(Remote {
        qpn: u32::from_str_radix(qpn, 16)?,
        psn: u32::from_str_radix(psn, 16)?,
        gid: u128::from_str_radix(gid, 16)?.to_be_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        let gid = std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
        Remote { qpn: 0x11, psn: 0xabcdef, gid }
    }

    #[test]
    fn a_message_is_what_the_original_writes_and_returns() {
        let message = write(&remote());
        assert_eq!(&message, b"0000:000011:abcdef:00000000000000000000ffff0a090001\0");
        assert_eq!(read(&message).unwrap(), remote());
    }

    #[test]
    fn garbage_is_told_with_what_was_expected() {
        let good = write(&remote());
        for (at, byte) in [(4, b'0'), (5, b'-'), (18, b'g'), (51, b'x'), (30, 0xff), (7, b':')] {
            let mut bad = good;
            bad[at] = byte;
            let error = format!("{:#}", read(&bad).unwrap_err());
            assert!(error.contains("expected was LLLL:"), "{error}");
            assert!(error.contains("0000") && error.contains("the peer sent"), "{error}");
        }
    }
}
