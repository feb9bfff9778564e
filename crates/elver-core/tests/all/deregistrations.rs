//! Deregistrations that wait: for peers' leases, and for a device that is not done with a region.

use elver_core::*;
use elver_verbs::*;

use crate::common::config;
use crate::common::virtual_time::Nodes;

/// Within this a region goes of which nothing is open, once the device is done with it.
const SOON_NS: u64 = 1_000_000;

/// One that a device was not done with stood behind all whose leases had to run out first.
#[test]
fn who_waits_for_the_device_does_not_wait_for_others_leases() {
    let mut nodes = Nodes::new(2, &config(), ClientLimits::default());
    let open = nodes.region(1, 64);
    let began = nodes.net.now();
    let node = &mut nodes.nodes[1];
    let memory = node.core.device().alloc_memory(64).unwrap();
    let own = node.core.reg_mr(node.client, memory, None, AccessFlags::LOCAL_WRITE).unwrap();
    node.core.dereg_mr(node.client, open.lkey, 1, began).unwrap();
    node.core.device().in_use = 3;
    node.core.dereg_mr(node.client, own.lkey, 2, began).unwrap();
    nodes.pause(SOON_NS);
    let told = |nodes: &mut Nodes| nodes.nodes[1].core.poll_event();
    let client = nodes.nodes[1].client;
    assert_eq!(told(&mut nodes), Some(Event::Deregistered { client, token: 2 }));
    nodes.until(|nodes| told(nodes) == Some(Event::Deregistered { client, token: 1 }));
    assert!(nodes.net.now().ns_since(began) >= config().mr_lease_ns);
    assert_eq!(nodes.nodes[1].core.poll_timeout(), None, "nothing is left to be tried");
}
