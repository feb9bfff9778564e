//! The hot path allocates nothing: neither writing, full or not, nor reading, empty or not, whole or in parts.

use std::io::{ErrorKind, IoSlice, Read, Write};

use crate::common::{TestNode, WAIT, byte, config, pair};
use elver_stream::{Options, Shutdown};
use elver_testkit::Count;

/// Of so many bytes the first half is not counted: queues grow to what they need.
const BYTES: u64 = 8_000_000;

#[test]
fn nothing_is_allocated_for_a_write_or_a_read() {
    let node = TestNode::start(config(60, 1));
    pair(
        (&node, &node),
        Options::default(),
        |_listener, mut stream| {
            stream.set_nonblocking(true);
            let (mut at, mut count) = (0, None);
            let mut bytes = [0; 3_001];
            while at < BYTES {
                match stream.read(&mut bytes) {
                    Ok(read) => {
                        assert_eq!(bytes[0], byte(1, at));
                        at += read as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
                if at >= BYTES / 2 && count.is_none() {
                    count = Some(Count::begin());
                }
            }
            count.unwrap().end("the reader");
            stream.set_nonblocking(false);
            assert_eq!(stream.read(&mut bytes).unwrap(), 0);
        },
        |_session, mut stream| {
            stream.set_nonblocking(true);
            let (mut at, mut count) = (0, None);
            let mut bytes = [0; 50_000];
            while at < BYTES {
                // Short ones, and such as are longer than what goes out at once.
                let len = if at % 3 == 0 { 64 } else { 50_000 }.min(BYTES - at) as usize;
                (0..len as u64).for_each(|add| bytes[add as usize] = byte(1, at + add));
                let (first, second) = bytes[..len].split_at(len / 3);
                match stream.write_vectored(&[first, second].map(IoSlice::new)) {
                    Ok(written) => at += written as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
                if at >= BYTES / 2 && count.is_none() {
                    count = Some(Count::begin());
                }
            }
            count.unwrap().end("the writer");
            stream.shutdown(Shutdown::Write).unwrap();
            stream.finish(WAIT).unwrap();
        },
    );
}
