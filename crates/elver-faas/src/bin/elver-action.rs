//! The first process of an action's container under OpenWhisk.

use std::net::{Ipv4Addr, SocketAddr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = match &arguments[..] {
        [] => SocketAddr::from((Ipv4Addr::UNSPECIFIED, elver_faas::action::PORT)),
        [address] if !address.starts_with('-') => address.parse()?,
        _ => return Err("usage: elver-action [ADDRESS:PORT]".into()),
    };
    Ok(elver_faas::action::serve(address)?)
}
