//! Any bytes as what comes over the network to a core: never a panic, and what decodes encodes to
//! the same bytes.

#![no_main]

use elver_core::{CONTROL_BYTES_MAX, ControlMessage, MetaServer, NODE_RECORD_BYTES, NodeRecord};
use elver_kv::{Descriptor, Layout, TableId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    control(bytes);
    if let Ok(record) = NodeRecord::decode(bytes) {
        assert_eq!(record.encode()[..], *bytes);
    }
    if let Ok(server) = MetaServer::decode(bytes) {
        assert_eq!(server.encode()[..], *bytes);
    }
    // A record carries a check that chance does not hit: lend the longest message a good one.
    if bytes.len() == CONTROL_BYTES_MAX {
        let mut bytes = bytes.to_vec();
        bytes[CONTROL_BYTES_MAX - NODE_RECORD_BYTES..].copy_from_slice(&record().encode());
        control(&bytes);
    }
});

fn control(bytes: &[u8]) {
    if let Ok(message) = ControlMessage::decode(bytes) {
        let mut again = [0xff; CONTROL_BYTES_MAX];
        let len = message.encode(&mut again);
        assert_eq!(&again[..len], bytes);
    }
}

fn record() -> NodeRecord {
    let layout = Layout::for_capacity(100, 4, 20).expect("a layout");
    let id = TableId { seed: 1, incarnation: 2 };
    let mrs = Descriptor::new(0x7000_0000, 3, layout, id).expect("a descriptor");
    NodeRecord { dctn: 4, dc_key: 5, control_qpn: 6, mrs }
}
