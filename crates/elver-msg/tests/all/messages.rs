//! Messages of a few bytes: order, wildcards, requests, and what is refused.

use std::time::Duration;

use crate::common::{TestNode, both_ways_at, cluster, config, content, together};
use elver::Policy;
use elver_msg::{Error, Options, Source, TAG_MAX, Tag};

#[test]
fn messages_arrive_in_order_and_tags_part_them() {
    both_ways_at(1, true, |node| {
        together(&[node], 2, Options::default(), |group| {
            const COUNT: u32 = 300;
            if group.rank() == 0 {
                for number in 0..COUNT {
                    group.send(1, number % 3, &number.to_le_bytes()).unwrap();
                }
                return group.finish().unwrap();
            }
            // One tag behind the other: what is not asked for waits.
            for tag in [2, 0, 1] {
                for number in (0..COUNT).filter(|number| number % 3 == tag) {
                    let mut bytes = [0; 4];
                    let status = group.recv(0, tag, &mut bytes).unwrap();
                    assert_eq!((status.source, status.tag, status.len), (0, tag, 4));
                    assert_eq!(u32::from_le_bytes(bytes), number);
                }
            }
            assert!(group.counters().messages.unexpected >= 200, "{:?}", group.counters());
            group.finish().unwrap();
        });
    });
}

#[test]
fn any_source_takes_each_rank_s_in_its_order() {
    let (meta, other) = cluster(2);
    together(&[&meta, &other], 5, Options::default(), |group| {
        const EACH: u32 = 100;
        if group.rank() > 0 {
            for number in 0..EACH {
                group.send(0, number % 7, &number.to_le_bytes()).unwrap();
            }
            return group.finish().unwrap();
        }
        let mut next = [0; 5];
        for _ in 0..4 * EACH {
            let mut bytes = [0; 4];
            let status = group.recv(Source::Any, Tag::Any, &mut bytes).unwrap();
            let number = u32::from_le_bytes(bytes);
            let next = &mut next[status.source as usize];
            assert_eq!((number, status.tag), (*next, *next % 7));
            *next += 1;
        }
        assert_eq!(next[1..], [EACH; 4]);
        group.finish().unwrap();
    });
}

/// Each rank by an RC queue pair of its own to each other one.
#[test]
fn messages_go_by_leases() {
    let (meta, other) = cluster(12);
    let options = Options { policy: Policy::Leased, ..Options::default() };
    let nodes = [&meta, &other];
    let leased = together(&nodes, 3, options, |group| {
        let (rank, size) = (group.rank(), group.size());
        for peer in (0..size).filter(|peer| *peer != rank) {
            group.send(peer, 1, &rank.to_le_bytes()).unwrap();
        }
        for peer in (0..size).filter(|peer| *peer != rank) {
            let mut bytes = [0; 4];
            group.recv(peer, 1, &mut bytes).unwrap();
            assert_eq!(u32::from_le_bytes(bytes), peer);
        }
        // Each has its own until all have looked.
        group.barrier().unwrap();
        let vqps = nodes[rank as usize % 2].thread.status().unwrap().vqps;
        let leased = vqps.iter().filter(|vqp| vqp.via.as_deref() == Some("leased")).count();
        group.barrier().unwrap();
        group.finish().unwrap();
        leased
    });
    // Two ranks at the first node, with two peers each, and one at the other.
    assert_eq!(leased, [4, 2, 4]);
}

/// A long message and a short one behind it, under one tag: the first one sent is the first received.
#[test]
fn a_short_message_does_not_pass_a_long_one() {
    both_ways_at(3, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            let long = content(1, 200_000);
            if group.rank() == 0 {
                let first = group.isend(1, 5, long).unwrap();
                group.send(1, 5, b"short").unwrap();
                group.send(1, 6, b"other").unwrap();
                first.wait().unwrap();
            } else {
                assert_eq!(group.recv_vec(0, 6).unwrap().1, b"other");
                assert_eq!(group.recv_vec(0, 5).unwrap().1, long);
                assert_eq!(group.recv_vec(Source::Any, Tag::Any).unwrap().1, b"short");
            }
            group.finish().unwrap();
        });
    });
}

#[test]
fn receives_take_in_the_order_in_which_they_were_posted() {
    both_ways_at(4, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            if group.rank() == 0 {
                let requests = [
                    group.irecv(1, 1, 10).unwrap(),
                    group.irecv(Source::Any, Tag::Any, 10).unwrap(),
                    group.irecv(1, 1, 10).unwrap(),
                ];
                group.barrier().unwrap();
                // Two with tag 1, then one with tag 2: the wildcard has the second.
                assert_eq!(group.wait_any(&requests[2..]).unwrap(), 0);
                assert!(requests.iter().all(|request| request.test().unwrap()));
                let all = group.wait_all(requests).unwrap();
                let texts: Vec<_> =
                    all.iter().map(|one| (one.status.tag, &one.bytes[..])).collect();
                assert_eq!(texts, [(1, &b"one"[..]), (1, b"two"), (1, b"four")]);
                assert_eq!(group.recv_vec(1, Tag::Any).unwrap().1, b"three");
            } else {
                group.barrier().unwrap();
                for (tag, text) in [(1, "one"), (1, "two"), (2, "three"), (1, "four")] {
                    group.isend(0, tag, text.as_bytes()).unwrap().wait().unwrap();
                }
            }
            group.finish().unwrap();
        });
    });
}

#[test]
fn a_message_that_does_not_fit_stays() {
    both_ways_at(5, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            for len in [100, 100_000] {
                if group.rank() == 0 {
                    group.isend(1, 1, content(9, len)).unwrap();
                    group.send(1, 2, b"behind").unwrap();
                    group.barrier().unwrap();
                    continue;
                }
                // It comes while a receive waits for it, and then it is there.
                let posted = group.irecv(0, 1, len - 1).unwrap();
                assert!(
                    matches!(posted.wait(), Err(Error::Truncated { room, .. }) if room == len as u64 - 1)
                );
                let mut room = vec![0; len];
                let told = group.recv(0, 1, &mut room[1..]).unwrap_err();
                assert!(told.to_string().contains(&format!("has {len} bytes")), "{told}");
                assert_eq!(group.probe(Source::Any, 1).unwrap().len, len as u64);
                group.recv(0, 1, &mut room).unwrap();
                assert_eq!(room, content(9, len));
                assert_eq!(group.recv_vec(0, 2).unwrap().1, b"behind");
                group.barrier().unwrap();
            }
            let expected = if group.rank() == 0 { 0 } else { 4 };
            assert_eq!(group.counters().messages.truncated, expected);
            group.finish().unwrap();
        });
    });
}

#[test]
fn a_rank_sends_to_itself() {
    both_ways_at(6, false, |node| {
        together(&[node], 1, Options::default(), |group| {
            assert_eq!((group.rank(), group.size()), (0, 1));
            for len in [0, 10, 8 << 10, 100_000, 1 << 20] {
                // Before it is received, and while it is.
                group.send(0, 1, &content(1, len)).unwrap();
                let request = group.irecv(0, 2, len).unwrap();
                group.send(0, 2, &content(2, len)).unwrap();
                assert_eq!(request.wait().unwrap().bytes, content(2, len));
                let mut room = vec![0; len];
                assert_eq!(group.recv(Source::Any, 1, &mut room).unwrap().source, 0);
                assert_eq!(room, content(1, len));
                let region = group.alloc(len as u64).unwrap();
                region.write(0, &content(3, len)).unwrap();
                group.send_region(0, 3, &region).unwrap();
                region.write(0, &vec![0; len]).unwrap();
                assert_eq!(group.recv_vec(0, 3).unwrap().1, content(3, len));
            }
            // More than are held for a peer.
            for number in 0..3_000_u32 {
                group.send(0, 4, &number.to_le_bytes()).unwrap();
            }
            for number in 0..3_000_u32 {
                assert_eq!(group.recv_vec(0, 4).unwrap().1, number.to_le_bytes());
            }
            // What never comes is told.
            assert!(matches!(group.recv(0, 9, &mut []), Err(Error::Itself)));
            assert!(matches!(group.recv(Source::Any, 9, &mut []), Err(Error::Itself)));
            assert!(matches!(group.probe(Source::Any, 9), Err(Error::Itself)));
            let request = group.irecv(0, 9, 1).unwrap();
            assert!(matches!(group.wait_any(&[request]), Err(Error::Itself)));
            assert_eq!(group.counters().requests, 0);
            group.barrier().unwrap();
            group.finish().unwrap();
        });
    });
}

#[test]
fn requests_are_taken_back_or_go_on() {
    both_ways_at(7, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            if group.rank() == 0 {
                // Withdrawn before anything came: the next receive has the message.
                drop(group.irecv(1, Tag::Any, 100).unwrap());
                assert!(!group.irecv(1, 3, 1).unwrap().wait_for(Duration::from_millis(1)).unwrap());
                group.barrier().unwrap();
                assert_eq!(group.recv_vec(1, Tag::Any).unwrap().1, b"wanted");
                // Nobody waits for it, and it arrives.
                drop(group.isend(1, 1, content(1, 300_000)).unwrap());
            } else {
                group.barrier().unwrap();
                group.send(0, 1, b"wanted").unwrap();
                assert_eq!(group.recv_vec(0, 1).unwrap().1, content(1, 300_000));
            }
            group.barrier().unwrap();
            assert_eq!(group.counters().requests, 0);
            group.finish().unwrap();
        });
    });
}

#[test]
fn probes_tell_what_would_be_received() {
    both_ways_at(8, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            if group.rank() == 0 {
                group.send(1, 4, b"four").unwrap();
                group.isend(1, 5, vec![7; 100_000]).unwrap();
            } else {
                assert_eq!(group.try_probe(1, Tag::Any).unwrap(), None);
                let status = group.probe(Source::Any, Tag::Is(5)).unwrap();
                assert_eq!((status.source, status.tag, status.len), (0, 5, 100_000));
                assert_eq!(group.try_probe(0, Tag::Any).unwrap().unwrap().tag, 4);
                assert_eq!(group.recv_vec(0, 5).unwrap().1, vec![7; 100_000]);
                assert_eq!(group.recv_vec(0, 4).unwrap().1, b"four");
                assert_eq!(group.try_probe(0, Tag::Any).unwrap(), None);
            }
            group.finish().unwrap();
        });
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let node = TestNode::start(config(9, 1));
    let mut options = Options { requests: 3, ..Options::default() };
    options.limits.message_bytes = 100_000;
    together(&[&node], 2, options, |group| {
        assert!(matches!(group.send(2, 0, b""), Err(Error::Rank { rank: 2, size: 2 })));
        assert!(matches!(group.recv(7, 0, &mut []), Err(Error::Rank { rank: 7, .. })));
        assert!(matches!(group.broadcast(2, &mut [0_u8]), Err(Error::Rank { rank: 2, .. })));
        let tag = TAG_MAX + 1;
        assert!(matches!(group.send(0, tag, b""), Err(Error::Tag { .. })));
        assert!(matches!(group.recv(0, tag, &mut []), Err(Error::Tag { .. })));
        let other = 1 - group.rank();
        let told = group.send(other, 0, &[0; 100_001]).unwrap_err();
        assert!(matches!(told, Error::TooLong { len: 100_001, max: 100_000 }), "{told}");
        let _held: Vec<_> = (0..3).map(|_| group.irecv(other, TAG_MAX, 1).unwrap()).collect();
        assert!(matches!(group.irecv(other, 1, 1), Err(Error::TooMany { max: 3 })));
        assert!(matches!(group.send(other, 1, b""), Err(Error::TooMany { max: 3 })));
        drop(_held);
        group.finish().unwrap();
    });
    let session = crate::common::session_at(&node);
    for wrong in [
        Options { ring_bytes: 5_000, ..Options::default() },
        Options { ring_bytes: 1 << 30, ..Options::default() },
        Options { requests: 0, ..Options::default() },
    ] {
        let joined = elver_msg::Group::join(&session, 0, &[Default::default()], 1, wrong);
        assert!(matches!(joined, Err(Error::Options { .. })));
    }
}
