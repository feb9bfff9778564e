//! One memory, registered by several sessions of a process: who may, and when it goes back to the system.

use elver_portal::{Answer, Command, RefusalCode};
use elver_verbs::{AccessFlags, Memory, RemoteAddr, WcStatus};

use crate::common::{Client, Refused, Region, free_address, gid, wait_for};
use crate::{client, config, node};

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ);

/// Registers memory that has a region of this key at this address; the new keys.
fn share(client: &mut Client, lkey: u32, addr: u64) -> Result<(u32, u32), Refused> {
    client.ask(&Command::ShareMr { lkey, addr, access: ACCESS }, |answer| match answer {
        Answer::Mr { lkey, rkey, file_bytes: 0 } => Some((lkey, rkey)),
        _ => None,
    })
}

fn refused(result: Result<(u32, u32), Refused>) {
    assert_eq!(result.unwrap_err().0, RefusalCode::NoSuchMr);
}

fn blocks(file: &std::os::fd::OwnedFd) -> i64 {
    rustix::fs::fstat(file).unwrap().st_blocks
}

#[test]
fn memory_goes_back_with_its_last_region() {
    let address = free_address();
    let node = node(config(&address));
    let (mut one, mut other) = (client(&node), client(&node));
    for ends in [false, true] {
        let mut first = client(&node);
        let (region, file, _): (Region, _, u64) = first.alloc_file(5_000, false).unwrap();
        region.memory.write(4_990, b"there").unwrap();
        let (lkey, rkey) = share(&mut other, region.lkey, region.addr).unwrap();
        assert!(lkey != region.lkey && rkey != region.rkey);
        // It goes by itself, or with its session.
        if ends {
            drop(first);
            wait_for("the session to end", || {
                (node.status().unwrap().sessions.len() == 2).then_some(())
            });
        } else {
            first.done(&Command::DeregisterMr { lkey: region.lkey }).unwrap();
        }
        refused(share(&mut one, region.lkey, region.addr));
        assert!(blocks(&file) > 0);
        let (vqp, into) = (one.create(), one.alloc(64).unwrap());
        one.qconnect(vqp, gid(&address), 0).unwrap();
        one.read(vqp, &into, 0, 5, RemoteAddr { addr: region.addr + 4_990, rkey });
        assert_eq!(one.completion().status, WcStatus::Success);
        let mut bytes = [0; 5];
        into.memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"there");
        other.done(&Command::DeregisterMr { lkey }).unwrap();
        wait_for("the pages to go", || (blocks(&file) == 0).then_some(()));
    }
}

#[test]
fn what_is_no_memory_to_share_is_refused() {
    let address = free_address();
    let node = node(config(&address));
    let (mut one, mut other) = (client(&node), client(&node));
    let region = one.alloc(64).unwrap();
    refused(share(&mut other, region.lkey ^ 1 << 9, region.addr));
    refused(share(&mut other, region.lkey, region.addr + 4_096));
    refused(share(&mut other, 0, 0));
    // A piece of the session's arena goes with the session.
    let carve = Command::CarveMr { len: 64, offset: 0, addr: 0x7000, access: ACCESS };
    let carved = one.ask(&carve, |answer| match answer {
        Answer::Mr { lkey, .. } => Some(lkey),
        _ => None,
    });
    refused(share(&mut other, carved.unwrap(), 0x7000));
    // A session whose regions are as many as it may have.
    let mut few = config(&free_address());
    few.quota.session_mrs = 2;
    let node = self::node(few);
    let (mut one, mut other) = (client(&node), client(&node));
    let region = one.alloc(64).unwrap();
    for _ in 0..2 {
        share(&mut other, region.lkey, region.addr).unwrap();
    }
    assert_eq!(share(&mut other, region.lkey, region.addr).unwrap_err().0, RefusalCode::Limit);
    // What was refused counts for nobody.
    let status = node.status().unwrap();
    assert_eq!(status.users.iter().map(|user| user.mrs).sum::<u32>(), 3);
}
