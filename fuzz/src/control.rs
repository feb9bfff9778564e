//! Any bytes as what comes over the network to a core: never a panic, and what decodes encodes to
//! the same bytes.

use elver_control::{CONTROL_BYTES_MAX, ControlMessage, MetaServer, NodeRecord};

/// Runs an input.
pub fn run(bytes: &[u8]) {
    control(bytes);
    if let Ok(record) = NodeRecord::decode(bytes) {
        assert_eq!(record.encode()[..], *bytes);
        record.mrs().expect("what decodes names a table");
    }
    if let Ok(server) = MetaServer::decode(bytes) {
        assert_eq!(server.encode()[..], *bytes);
    }
}

fn control(bytes: &[u8]) {
    if let Ok(message) = ControlMessage::decode(bytes) {
        let mut again = [0xff; CONTROL_BYTES_MAX];
        let len = message.encode(&mut again);
        assert_eq!(&again[..len], bytes);
    }
}
