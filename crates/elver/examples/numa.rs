//! Memory near a thread, and at each NUMA node of the machine; where its pages lie, the system tells.
//!
//! `cargo run -p elver --example numa`, with a daemon running. On a machine with one node all of them lie there.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use elver::{AccessFlags, Error, Mr, Numa, Placement, Session};

const BYTES: u64 = 1 << 20;

fn main() -> Result<(), Error> {
    let session = Session::connect_default()?;
    // Whoever asks for memory near itself best stays where it is: `numactl --cpunodebind=1`, `taskset`.
    show(&session, "near this thread", Numa::Here, false)?;
    for node in Numa::nodes() {
        show(&session, &format!("at node {node}"), Numa::Node(*node), false)?;
        // Of those that were set aside there (`/sys/devices/system/node/node*/hugepages`), if any are left.
        show(&session, &format!("from huge pages at node {node}"), Numa::Node(*node), true)?;
    }
    show(&session, "anywhere", Numa::Any, false)
}

fn show(session: &Session, place: &str, numa: Numa, huge: bool) -> Result<(), Error> {
    let placement = Placement { huge, numa, ..Placement::default() };
    let mr = session.alloc_placed(BYTES, AccessFlags::LOCAL_WRITE, placement)?;
    // The system counts pages that this process has touched.
    mr.write(0, &vec![1; BYTES as usize])?;
    match pages(&mr) {
        Some((nodes, kb)) if !nodes.is_empty() => {
            let nodes = nodes.iter().map(|(node, count)| format!("{count} at node {node}"));
            let nodes = nodes.collect::<Vec<_>>().join(", ");
            println!("{BYTES} bytes {place}: pages of {kb} KB: {nodes}");
        }
        _ => println!("{BYTES} bytes {place}: the system does not tell where its pages lie"),
    }
    Ok(())
}

/// How many pages of a region lie at which node, and the KB of each: numa_maps(5), whose lines are such as
/// `7f00a000 prefer:1 file=/memfd:elver-mr (deleted) mapped=256 N1=256 kernelpagesize_kB=4`.
fn pages(mr: &Mr) -> Option<(BTreeMap<u16, u64>, u64)> {
    let maps = read_to_string("/proc/self/numa_maps").ok()?;
    let line = maps.lines().find_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        (u64::from_str_radix(start, 16) == Ok(mr.addr())).then_some(rest)
    })?;
    let fields = line.split(' ').filter_map(|field| field.split_once('='));
    let (mut nodes, mut kb) = (BTreeMap::new(), 0);
    for (name, value) in fields {
        match name.strip_prefix('N').and_then(|node| node.parse().ok()) {
            Some(node) => drop(nodes.insert(node, value.parse().ok()?)),
            None if name == "kernelpagesize_kB" => kb = value.parse().ok()?,
            None => {}
        }
    }
    Some((nodes, kb))
}
