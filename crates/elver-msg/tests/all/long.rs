//! Long messages: READ from region to region, and in pieces otherwise.

use crate::common::{both_ways_at, cluster, content, together};
use elver_msg::{Group, Options, Region, Source, Tag};

/// Around what goes whole, and beyond a ring.
const LENGTHS: [usize; 7] = [1, 8_191, 8_192, 8_193, 70_000, 300_000, 3 << 20];

fn region(group: &Group, bytes: &[u8]) -> Region {
    let region = group.alloc(bytes.len() as u64).unwrap();
    region.write(0, bytes).unwrap();
    region
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Both ends with registered memory, one, the other, none.
fn each_way(group: &Group) {
    let (peer, is_sender) = (1 - group.rank(), group.rank() == 0);
    for (id, len) in (0..).zip(LENGTHS) {
        for (sends_region, receives_region) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let (content, read) = (content(id, len), group.counters().messages.read);
            let is_read = sends_region && receives_region && len > 8_192;
            if is_sender {
                match sends_region {
                    true => group.send_region(peer, 1, &region(group, &content)).unwrap(),
                    false => group.send(peer, 1, &content).unwrap(),
                }
                continue;
            }
            if receives_region {
                let into = group.alloc(len as u64 + 10).unwrap();
                let part = into.slice(5..len as u64 + 5).unwrap();
                let status = group.recv_region(Source::Any, Tag::Any, &part).unwrap();
                assert_eq!((status.source, status.len), (0, len as u64));
                assert_eq!(bytes(&into), [vec![0; 5], content, vec![0; 5]].concat());
            } else {
                assert_eq!(group.recv_vec(peer, 1).unwrap().1, content);
            }
            assert_eq!(group.counters().messages.read - read, u64::from(is_read), "{len}");
        }
    }
}

#[test]
fn long_messages_are_read_where_both_ends_have_regions() {
    both_ways_at(20, false, |node| {
        together(&[node], 2, Options::default(), |group| {
            each_way(&group);
            group.finish().unwrap();
        });
    });
}

#[test]
fn long_messages_go_between_nodes() {
    let (meta, other) = cluster(21);
    together(&[&meta, &other], 2, Options::default(), |group| {
        each_way(&group);
        group.finish().unwrap();
    });
}

/// All to all at once, longer than the rings: nobody waits for anybody who waits.
#[test]
fn many_long_messages_cross() {
    let (meta, other) = cluster(22);
    let options = Options { ring_bytes: 4 << 10, ..Options::default() };
    together(&[&meta, &other], 4, options, |group| {
        const LEN: usize = 200_000;
        const EACH: u64 = 3;
        let id = |from: u32, to: u32, turn: u64| u64::from(from * 10 + to) * 10 + turn;
        let mut requests = Vec::new();
        for peer in 0..group.size() {
            for turn in 0..EACH {
                let content = content(id(group.rank(), peer, turn), LEN);
                let is_region = turn == 1;
                requests.push(match is_region {
                    true => group.isend(peer, turn as u32, &region(&group, &content)).unwrap(),
                    false => group.isend(peer, turn as u32, content).unwrap(),
                });
            }
        }
        for peer in (0..group.size()).rev() {
            for turn in (0..EACH).rev() {
                let expected = content(id(peer, group.rank(), turn), LEN);
                if turn == 1 {
                    let into = group.alloc(LEN as u64).unwrap();
                    group.recv_region(peer, turn as u32, &into).unwrap();
                    assert_eq!(bytes(&into), expected);
                } else {
                    assert_eq!(group.recv_vec(peer, turn as u32).unwrap().1, expected);
                }
            }
        }
        group.wait_all(requests).unwrap();
        // From each other rank one; to itself a rank copies.
        assert_eq!(group.counters().messages.read, u64::from(group.size()) - 1);
        group.finish().unwrap();
    });
}

/// Two that both send what is long, and only then receive, by requests.
#[test]
fn who_sends_long_messages_takes_in_what_comes() {
    both_ways_at(23, true, |node| {
        together(&[node], 2, Options::default(), |group| {
            let peer = 1 - group.rank();
            let own = content(group.rank().into(), 2 << 20);
            let theirs = group.irecv(peer, 1, usize::MAX).unwrap();
            group.send(peer, 1, &own).unwrap();
            assert_eq!(theirs.wait().unwrap().bytes, content(peer.into(), 2 << 20));
            group.finish().unwrap();
        });
    });
}
