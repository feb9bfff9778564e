//! The hot path allocates nothing: neither sending, full or not, nor receiving, empty or not.

use crate::common::{WAIT, both_ways_at, pair};
use elver_ring::{Error, Options};
use elver_testkit::Count;

/// Of so many messages the first half is not counted: queues grow to what they need.
const MESSAGES: u32 = 40_000;

#[test]
fn nothing_is_allocated_for_a_message() {
    both_ways_at(40, true, |node| {
        pair(
            (node, node),
            Options::default(),
            |_listener, mut ends| {
                let (mut read, mut count) = (0, None);
                while read < MESSAGES {
                    let Some(message) = ends.receiver.try_recv().unwrap() else {
                        std::thread::yield_now();
                        continue;
                    };
                    let mut number = [0; 4];
                    message.read(0, &mut number);
                    assert_eq!(u32::from_le_bytes(number), read);
                    read += 1;
                    if read == MESSAGES / 2 {
                        count = Some(Count::begin());
                    }
                }
                count.unwrap().end("the receiver");
                assert!(ends.receiver.recv(WAIT).unwrap().is_none());
            },
            |_session, mut ends| {
                let mut count = None;
                for number in 0..MESSAGES {
                    if number == MESSAGES / 2 {
                        count = Some(Count::begin());
                    }
                    while let Err(error) = ends.sender.try_send(&number.to_le_bytes()) {
                        assert!(matches!(error, Error::Full), "{error}");
                        std::thread::yield_now();
                    }
                    // Some alone, and most in batches.
                    if number % 100 == 0 {
                        ends.sender.flush().unwrap();
                    }
                }
                count.unwrap().end("the sender");
                ends.sender.finish(WAIT).unwrap();
            },
        );
    });
}
