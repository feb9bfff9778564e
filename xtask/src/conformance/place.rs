//! Where the two ends of a program run: on one host, or in two network namespaces with a link between them.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::not_run::Ran;
use super::outcome::Item;

/// The server's address in its namespace.
pub(super) const SERVER: &str = "10.78.13.1";
/// What rows there are called by, behind their words.
pub(super) const APART: &str = ", between two namespaces";
const CLIENT: &str = "10.78.13.2";
const DEVICE: &str = "large0";

/// Both ends, the server's first.
pub(super) struct Place {
    pub(super) name: &'static str,
    /// Where they are reached, and by which network device.
    pub(super) addresses: [String; 2],
    pub(super) device: &'static str,
    /// The words that run a program there.
    pub(super) before: [Vec<String>; 2],
    namespaces: Vec<String>,
}

impl Place {
    /// Each process has an address of its own of 127.0.0.0/8, and this host answers to all of those.
    pub(super) fn host() -> Place {
        Place {
            name: "one host",
            addresses: [(); 2].map(|()| "127.0.0.1".to_string()),
            device: "lo",
            before: [vec![], vec![]],
            namespaces: vec![],
        }
    }

    /// Needs root. One process at an end has the device's address.
    pub(super) fn namespaces() -> Result<Place> {
        let id = std::process::id();
        let namespaces: Vec<String> = ["a", "b"].map(|end| format!("large-{id}-{end}")).into();
        let addresses = [SERVER, CLIENT].map(str::to_string);
        let before = [0, 1].map(|end| {
            let device = format!("ELVER_ADDRESS={}", addresses[end]);
            let words = ["ip", "netns", "exec", &namespaces[end], "env", &device];
            words.map(str::to_string).into()
        });
        // It has them removed however far this comes.
        let place = Place { name: "two namespaces", addresses, device: DEVICE, before, namespaces };
        let [a, b] = &place.namespaces[..] else { unreachable!("there are two") };
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add {DEVICE} netns {a} type veth peer name {DEVICE} netns {b}"))?;
        for (namespace, address) in place.namespaces.iter().zip(&place.addresses) {
            ip(&format!("-n {namespace} addr add {address}/24 dev {DEVICE}"))?;
            ip(&format!("-n {namespace} link set {DEVICE} up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(place)
    }

    pub(super) fn is_host(&self) -> bool {
        self.namespaces.is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            // One that was not made is not there to go.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}

/// What `run` finds between two namespaces, of rows of these names; where there can be none, it says why.
pub(super) fn apart(
    wanted: Vec<String>,
    run: impl FnOnce(&Place) -> Result<Vec<Item>>,
) -> Result<Ran> {
    if wanted.is_empty() {
        return Ok(Ran::default());
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(Ran::none(wanted, "network namespaces need root".into()));
    }
    Ok(Ran::of(run(&Place::namespaces()?)?))
}

fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output().context("cannot run ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {words} (it needs root): {}", said.trim());
    Ok(())
}
