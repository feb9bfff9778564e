use std::io::Write;
use std::os::fd::AsFd;

use super::*;
use crate::memfd::{self, Pages};

#[test]
fn a_list_of_nodes_is_read() {
    for (list, nodes) in [
        ("", vec![]),
        ("\n", vec![]),
        ("0\n", vec![0]),
        ("0-1\n", vec![0, 1]),
        ("0,2-4,1023\n", vec![0, 2, 3, 4, 1023]),
    ] {
        assert_eq!(parse(list), Some(nodes), "{list:?}");
    }
    let most = parse("0-1023").unwrap();
    assert_eq!((most.len(), most[1023]), (1024, 1023));
    for list in ["a", "-", "0-", "-1", "1-0", "0,0", "0-2,1", "0-1024", "0-99999", "0 1", "+"] {
        assert_eq!(parse(list), None, "{list:?}");
    }
}

#[test]
fn a_node_is_one_bit() {
    assert_eq!(mask(0).unwrap()[0], 1);
    assert_eq!(mask(1023).unwrap().iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    assert_eq!(mask(1023).unwrap().last().unwrap().leading_zeros(), 0);
    assert_eq!(mask(1024), None);
    assert_eq!(mask(u16::MAX), None);
}

#[test]
fn this_thread_runs_at_a_node() {
    assert!(here().is_some_and(|node| node < NODES_MAX));
    assert!(nodes().is_sorted());
}

/// What the system says of the mapping that begins at an address.
fn policy_at(start: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
    let mut lines = maps.lines().filter_map(|line| line.split_once(' '));
    let is_at = |at: &str| usize::from_str_radix(at, 16) == Ok(start);
    let (_, rest) = lines.find(|(at, _)| is_at(at)).unwrap();
    rest.split(' ').next().unwrap().to_string()
}

#[test]
fn the_wish_is_the_files_and_was_there_before_its_pages() {
    let Some(&node) = nodes().last() else {
        let _ = writeln!(io::stderr(), "skipped: the system tells of no NUMA nodes");
        return;
    };
    let len = 64 << 10;
    let (file, is_near) = memfd::create_near("test", len, Pages::Small, Some(node)).unwrap();
    if !is_near {
        let _ = writeln!(io::stderr(), "skipped: this process may not say where pages lie");
        return;
    }
    let words = crate::memory::Words::map(&file, len as usize, true).unwrap();
    assert_eq!(policy_at(words.start().as_ptr() as usize), format!("prefer:{node}"));
    let (file, is_near) = memfd::create_near("test", len, Pages::Small, None).unwrap();
    assert!(is_near, "it has no wish");
    let words = crate::memory::Words::map(&file, len as usize, true).unwrap();
    assert_eq!(policy_at(words.start().as_ptr() as usize), "default");
}

#[test]
fn a_thread_has_its_own_policy_back() {
    let Some(&node) = nodes().last() else {
        let _ = writeln!(io::stderr(), "skipped: the system tells of no NUMA nodes");
        return;
    };
    let policies = || std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap();
    let wish = format!(" prefer:{node} ");
    let before = policies();
    let (during, is_near) = preferring(node, policies);
    if !is_near {
        let _ = writeln!(io::stderr(), "skipped: this process may not say where pages lie");
        return;
    }
    // Another test's files have wishes of their own.
    let is_threads = |line: &&str| !line.contains("file=") && line.contains(&wish);
    let counts = |text: &str| text.lines().filter(is_threads).count();
    assert!(counts(&during) > 0, "{during}");
    assert_eq!((counts(&before), counts(&policies())), (0, 0));
    // One within the other.
    preferring(node, || {
        preferring(node, || ());
        assert!(counts(&policies()) > 0);
    });
    assert_eq!(preferring(NODES_MAX - 1, || 7), (7, false));
    assert_eq!(preferring(NODES_MAX, || 7), (7, false));
    assert_eq!(counts(&policies()), 0);
}

#[test]
fn where_there_is_no_such_node_there_is_memory_all_the_same() {
    for node in [NODES_MAX - 1, NODES_MAX, u16::MAX] {
        let (file, is_near) = memfd::create_near("test", 8192, Pages::Small, Some(node)).unwrap();
        assert!(!is_near, "{node}");
        assert!(memfd::check(file.as_fd(), 8192).is_ok());
        assert!(prefer(file.as_fd(), 8192, node).is_err());
    }
}
