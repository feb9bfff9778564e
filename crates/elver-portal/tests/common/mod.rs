use elver_portal::{ClientEnd, Layout, NodeEnd, memfd};

/// Both ends of a session in one process.
pub fn ends(layout: Layout) -> (NodeEnd, ClientEnd) {
    let file = memfd::create("test", layout.bytes() as u64, memfd::Pages::Small).unwrap();
    (NodeEnd::map(&file, layout).unwrap(), ClientEnd::map(&file, layout).unwrap())
}

/// The smallest rings, which wrap soon.
pub fn small() -> Layout {
    Layout { command_slots: 32, receive_slots: 32, completion_slots: 32 }
}
