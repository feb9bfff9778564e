//! Where in the port's GID table the device's only GID is. Of a table the kernel fills, the index is a matter of the
//! machine: rdma_rxe has an IPv4 address at 1, and a NIC of Mellanox's at 3. Programs have it in their source.

use std::ffi::{OsString, c_int};
use std::sync::OnceLock;

const VARIABLE: &str = "ELVER_GID_INDEX";
/// As far as such programs go; the table ends there.
const MOST: u8 = 15;

static OWN: OnceLock<Result<u8, String>> = OnceLock::new();

fn read(told: Option<OsString>) -> Result<u8, String> {
    let Some(text) = told else { return Ok(0) };
    let index = text.to_str().and_then(|text| text.parse().ok()).filter(|index| *index <= MOST);
    index.ok_or_else(|| format!("{VARIABLE} is {text:?}; give a number, {MOST} at most"))
}

/// What the environment says, once a process.
pub(crate) fn told() -> Result<u8, String> {
    OWN.get_or_init(|| read(std::env::var_os(VARIABLE))).clone()
}

/// The index. A device whose index was not understood is never opened.
pub(crate) fn own() -> u8 {
    told().unwrap_or(0)
}

/// The length of a table whose last entry is ours.
pub(crate) fn table_len() -> u32 {
    u32::from(own()) + 1
}

/// Whether there is a GID at an index: the entries before ours are empty, and the kernel says so of its own (`ENODATA`).
pub(crate) fn is_ours(index: u32) -> Result<(), c_int> {
    match index.cmp(&own().into()) {
        std::cmp::Ordering::Less => Err(libc::ENODATA),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(libc::EINVAL),
    }
}

/// The device's index for one of the program's: an empty entry is no source of packets.
pub(crate) fn of_device(index: u8) -> Result<u8, c_int> {
    is_ours(index.into()).map(|()| 0).map_err(|_| libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_beyond_the_table_and_what_is_no_number_are_named() {
        assert_eq!(read(None), Ok(0));
        assert_eq!(read(Some("3".into())), Ok(3));
        let refused =
            |text: &str| format!("ELVER_GID_INDEX is {text:?}; give a number, 15 at most");
        for text in ["16", "-1", "one", ""] {
            assert_eq!(read(Some(text.into())), Err(refused(text)));
        }
    }
}
