//! A network function that counts packets by flow: one thread replays traffic, record by record, through a ring, and
//! another counts (RB², section V-C, case 1).
//!
//! Run it beside a daemon: `cargo run --release --example flow_counter -p elver-cases -- 1000000`, or with a capture:
//! `… -- traffic.pcap`.

use std::time::Instant;

use elver::{Gid, Session};
use elver_cases::flows::{Counts, RECORD, Record};
use elver_cases::{pcap, trace::Traffic};
use elver_ring::{Listener, ListenerOptions, Options, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Packets of a capture, at most: 2.7 GB of records.
const PACKETS_MAX: usize = 1 << 26;

fn main() -> Result<()> {
    let traffic = traffic(std::env::args().nth(1).as_deref().unwrap_or("100000"))?;
    let (tell, told) = std::sync::mpsc::channel();
    let counter = std::thread::spawn(move || count(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let mut ends = connect(&session, gid, port, Options::default(), None)?;
    let began = Instant::now();
    for record in &traffic {
        ends.sender.send(&record.encode(), None)?;
    }
    ends.sender.finish(None)?;
    let counts = counter.join().expect("the counter does not panic")?;
    let seconds = began.elapsed().as_secs_f64();

    let total = counts.total();
    println!(
        "{} packets of {} flows, {} bytes, in {seconds:.3} s",
        total.packets,
        counts.flows(),
        total.bytes
    );
    for (flow, count) in counts.largest(3) {
        let (source, destination) = (flow.source, flow.destination);
        println!(
            "  {source} to {destination}, port {}: {} packets",
            flow.destination_port, count.packets
        );
    }
    assert_eq!((total.packets, counts.gaps()), (traffic.len() as u64, 0));
    Ok(())
}

/// So many packets, or those of this file.
fn traffic(what: &str) -> Result<Vec<Record>> {
    if let Ok(packets) = what.parse() {
        return Ok(Traffic::default().packets(1).take(packets).collect());
    }
    let capture = pcap::read(std::fs::File::open(what)?, PACKETS_MAX)?;
    println!("{}: {} packets that are not IPv4 were left out", what, capture.skipped);
    Ok(capture.records)
}

fn count(tell: &std::sync::mpsc::Sender<(Gid, u16)>) -> Result<Counts> {
    let session = Session::connect_default()?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    tell.send((session.gid(), listener.port()))?;
    let mut ends = listener.accept(None)?;
    let mut counts = Counts::default();
    let mut record = [0; RECORD];
    while let Some(message) = ends.receiver.recv(None)? {
        if message.len() != RECORD {
            return Err(format!("a record has {RECORD} bytes, not {}", message.len()).into());
        }
        message.read(0, &mut record);
        counts.count(&Record::decode(&record));
    }
    Ok(counts)
}
