//! A port that is InfiniBand's: programs that know their peers by LIDs alone.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{command, library, succeeded};

const LINK_LAYER: &str = "ELVER_LINK_LAYER";

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lids/lids.c");
        let program = library().join("lids");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        succeeded("cc", &compiler.arg("-libverbs").output().unwrap());
        program
    })
}

/// RC and UD between two processes that tell each other LIDs and numbers, by pipes, directly and by packets.
#[test]
fn peers_are_reached_by_their_lids() {
    let program = program().to_str().unwrap();
    for direct in ["on", "off"] {
        let mut command = command(&[program]);
        command.env(LINK_LAYER, "infiniband").env("ELVER_DIRECT", direct);
        let said = succeeded(direct, &command.output().unwrap());
        assert!(said.ends_with(" checks, 0 failures\n"), "{direct}: {said}");
    }
}

#[test]
fn a_lid_leads_nowhere_on_ethernet() {
    let program = program().to_str().unwrap();
    for link_layer in [None, Some("ethernet")] {
        let mut command = command(&[program, "ethernet"]);
        command.envs(link_layer.map(|told| (LINK_LAYER, told)));
        let said = succeeded("ethernet", &command.output().unwrap());
        assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
    }
}

#[test]
fn a_link_layer_and_an_address_that_cannot_be_are_told() {
    let complaint = |variables: [(&str, &str); 2]| {
        let said = command(&["ibv_devinfo"]).envs(variables).output().unwrap();
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let unknown = complaint([(LINK_LAYER, "ib"), ("ELVER_ADDRESS", "127.0.0.1")]);
    let wanted = "ELVER_LINK_LAYER is \"ib\"; give \"ethernet\" or \"infiniband\"";
    assert!(unknown.contains(wanted), "{unknown}");
    for address in ["127.1.0.0", "127.1.192.0"] {
        let without = complaint([(LINK_LAYER, "infiniband"), ("ELVER_ADDRESS", address)]);
        let wanted = format!("the last 16 bits of its address, and those of {address} are none");
        assert!(without.contains(&wanted), "{without}");
    }
}
