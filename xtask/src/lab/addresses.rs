//! What guests and host are called on their link.

/// Names of the guests.
pub const GUESTS: [&str; 2] = ["a", "b"];

pub fn guest_address(index: usize) -> String {
    format!("10.9.0.{}", index + 1)
}

pub fn guest_mac(index: usize) -> String {
    format!("02:00:0a:09:00:{:02x}", index + 1)
}

/// Of the host.
pub const HOST_ADDRESS: &str = "10.9.0.254";
