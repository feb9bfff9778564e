//! Small records from one thread to another, filled and read where they lie in the ring.
//!
//! Run it beside a daemon: `cargo run --example records -p elver-ring -- 1000000`.

use elver::Session;
use elver_ring::{Config, Error, Listener, ListenerOptions, Options, connect};

/// A flow's key, a time, a number and a size, as a measuring network function gets them.
const RECORD: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let records: u64 = std::env::args().nth(1).map_or(Ok(100_000), |records| records.parse())?;
    // A session belongs to its thread; between processes it is the same.
    let (tell, told) = std::sync::mpsc::channel();
    let counter = std::thread::spawn(move || count(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let mut ends = connect(&session, gid, port, Options::default(), None)?;
    for number in 0..records {
        let mut room = ends.sender.reserve(RECORD, None)?;
        // A slot holds it, so that it lies in one piece.
        let [record, _] = room.parts();
        record[..8].copy_from_slice(&(number % 7).to_le_bytes());
        record[8..16].copy_from_slice(&(64 + number % 1_400).to_le_bytes());
        room.commit()?;
    }
    ends.sender.finish(None)?;
    let (counted, bytes) = counter.join().expect("the counter does not panic")?;
    println!("{counted} records of {bytes} bytes of traffic");
    assert_eq!(counted, records);
    Ok(())
}

/// Sums up what comes.
fn count(tell: &std::sync::mpsc::Sender<(elver::Gid, u16)>) -> Result<(u64, u64), Error> {
    let session = Session::connect_default()?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), listener.port()));
    let mut ends = listener.accept(None)?;
    let (mut records, mut bytes) = (0, 0);
    while let Some(record) = ends.receiver.recv(None)? {
        let mut size = [0; 8];
        record.read(8, &mut size);
        records += 1;
        bytes += u64::from_le_bytes(size);
    }
    assert_eq!(ends.receiver.shape().slots(), u64::from(Config::default().slots));
    Ok((records, bytes))
}
