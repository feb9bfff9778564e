//! At which address the device of this process is.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};

use elver_soft::{SoftConfig, SoftDevice, SoftError};

use crate::device::node_guid;
use crate::link_layer;
use crate::wishes::Wishes;

/// An IP address of this host, or several with commas between them: each process takes the first that is free.
const VARIABLE: &str = "ELVER_ADDRESS";
/// Addresses that may be named.
const NAMED_MAX: usize = 1 << 10;
/// Addresses of 127.0.0.0/8 that are tried before it is taken for full.
const LOOPBACK_TRIES: u32 = 64;

/// Bytes of a process's address space: a region may have all of it.
pub(crate) const ADDRESSES: u64 = 1 << 47;

/// Opens the device on an address that the user named, or on a free one of loopback.
pub(crate) fn open(wishes: &Wishes) -> Result<SoftDevice, String> {
    if let Some(text) = std::env::var_os(VARIABLE) {
        let named = text.to_str().and_then(named).ok_or_else(|| {
            format!("{VARIABLE} is {text:?}; give an IP address of this host, or several with commas between them")
        })?;
        for address in &named {
            link_layer::suits(*address)?;
        }
        return open_first(&named, wishes);
    }
    let mut last = String::new();
    for attempt in 0..LOOPBACK_TRIES {
        match open_at(IpAddr::V4(loopback(attempt)), wishes) {
            Ok(device) => return Ok(device),
            // No other address would mend it.
            Err(error @ SoftError::Capture { .. }) => return Err(error.to_string()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("no free address in 127.0.0.0/8 after {LOOPBACK_TRIES} tries: {last}"))
}

/// The addresses of a list, if it is one.
fn named(text: &str) -> Option<Vec<IpAddr>> {
    let all: Vec<IpAddr> =
        text.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().ok()?;
    (all.len() <= NAMED_MAX).then_some(all)
}

/// The device at the first of these addresses that no other process has.
fn open_first(named: &[IpAddr], wishes: &Wishes) -> Result<SoftDevice, String> {
    for address in named {
        match open_at(*address, wishes) {
            Ok(device) => return Ok(device),
            Err(SoftError::Bind { reason, .. }) if reason.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let all: Vec<String> = named.iter().map(ToString::to_string).collect();
    Err(format!(
        "another process, or the kernel's rdma_rxe, has UDP port 4791 of {}, and each process needs an address of its own: \
         name more of this host's in {VARIABLE}, with commas between them",
        all.join(", ")
    ))
}

/// An address that no other process is likely to try: 127.64.0.1 to 127.127.255.254, or as far as LIDs go.
fn loopback(attempt: u32) -> Ipv4Addr {
    let count = match link_layer::is_infiniband() {
        true => u32::from(*link_layer::UNICAST.end()),
        false => (1 << 22) - 2,
    };
    let drawn = std::process::id().wrapping_add(attempt.wrapping_mul(0x9e37_79b1)) % count;
    Ipv4Addr::from(0x7f40_0001 + drawn)
}

fn open_at(address: IpAddr, wishes: &Wishes) -> Result<SoftDevice, SoftError> {
    let mut config = SoftConfig::for_address(address);
    config.rnic.max_mr_size = ADDRESSES;
    config.rnic.name = crate::device::name();
    config.rnic.node_guid = node_guid();
    wishes.apply(&mut config);
    SoftDevice::open(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_of_addresses_alone() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(named("192.0.2.1"), Some(vec![address("192.0.2.1")]));
        assert_eq!(
            named("192.0.2.1, 2001:db8::1"),
            Some(vec![address("192.0.2.1"), address("2001:db8::1")])
        );
        for wrong in ["", ",", "192.0.2.1,", "192.0.2.0/24", "localhost"] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
        assert_eq!(named(&["::1"; NAMED_MAX + 1].join(",")), None);
    }
}
