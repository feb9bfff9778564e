//! What is hot allocates nothing: a short message and its answer, into memory of the caller's.

use std::time::Duration;

use crate::common::{TestNode, config, together};
use elver_msg::Options;
use elver_testkit::Count;

#[test]
fn a_message_and_its_answer_allocate_nothing() {
    let node = TestNode::start(config(45, 1));
    // Who sleeps is given a list of what woke him.
    let options = Options { spin: Duration::from_secs(5), ..Options::default() };
    together(&[&node], 2, options, |group| {
        let peer = 1 - group.rank();
        let mut turn = |number: u32| {
            let mut bytes = number.to_le_bytes();
            if group.rank() == 0 {
                group.send(peer, 1, &bytes).unwrap();
                group.recv(peer, 1, &mut bytes).unwrap();
            } else {
                group.recv(peer, 1, &mut bytes).unwrap();
                group.send(peer, 1, &bytes).unwrap();
            }
            assert_eq!(bytes, number.to_le_bytes());
        };
        // Until what grows has grown.
        (0..2_000).for_each(&mut turn);
        let count = Count::begin();
        (0..5_000).for_each(&mut turn);
        count.end("a rank");
        group.finish().unwrap();
    });
}
