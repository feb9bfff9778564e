//! Memory that sessions of one process share is no other process's, whoever it is of.

use elver_portal::{Answer, Command, RefusalCode};
use elver_testkit::{Role, role, stay};
use elver_verbs::{AccessFlags, RemoteAddr, WcStatus};

use crate::common::daemon::{Daemon, Directory, Witness};
use crate::common::process::{start, start_by};
use crate::common::{Client, Refused};

fn share(client: &mut Client, lkey: u32, addr: u64) -> Result<u32, Refused> {
    let access = AccessFlags::REMOTE_READ;
    client.ask(&Command::ShareMr { lkey, addr, access }, |answer| match answer {
        Answer::Mr { rkey, .. } => Some(rkey),
        _ => None,
    })
}

#[test]
fn memory_is_shared_within_a_process_alone() {
    let directory = Directory::new();
    let daemon = Daemon::start(&directory, "a", "");
    let mut witness = Witness::new(&daemon);
    let (lkey, addr) = (witness.region.lkey, witness.region.addr);
    let mut beside = Client::connect(&daemon.socket).unwrap();
    let rkey = share(&mut beside, lkey, addr).unwrap();
    witness.client.read(witness.vqp, &witness.region, 8, 8, RemoteAddr { addr, rkey });
    assert_eq!(witness.client.completion().status, WcStatus::Success);
    // Others know all that there is to know: another user's process, and one of this user's own.
    let knows = format!("{lkey} {addr}");
    let test = "shares::client_that_names_another_s_memory";
    let others = [
        start(&directory, &daemon.socket, test, &knows),
        start_by(&["env"], &directory, &daemon.socket, test, &knows),
    ];
    for mut other in others {
        assert_eq!(other.says(), "refused");
        assert_eq!(other.says(), "has its own");
        other.ends();
    }
    witness.works();
}

/// Not a test of its own: a process that would have what is another's.
#[test]
fn client_that_names_another_s_memory() {
    let Some(Role { socket, knows }) = role() else { return };
    let (lkey, addr) = knows.split_once(' ').unwrap();
    let (lkey, addr) = (lkey.parse().unwrap(), addr.parse().unwrap());
    let mut client = Client::connect(&socket).unwrap();
    assert_eq!(share(&mut client, lkey, addr).unwrap_err().0, RefusalCode::NoSuchMr);
    eprintln!("refused");
    // Memory of its own it may share, though it stands at the same address.
    let region = client.alloc(64).unwrap();
    assert_eq!(region.addr, addr);
    let mut beside = Client::connect(&socket).unwrap();
    share(&mut beside, region.lkey, region.addr).unwrap();
    eprintln!("has its own");
    stay();
}
