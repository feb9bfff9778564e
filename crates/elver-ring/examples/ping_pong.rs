//! A question and its answer, one at a time: nothing is batched.
//!
//! Run it beside a daemon: `cargo run --release --example ping_pong -p elver-ring -- 100000`.

use std::time::Instant;

use elver::Session;
use elver_ring::{Config, Error, Listener, ListenerOptions, Options, connect};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(10_000), |rounds| rounds.parse())?;
    let (tell, told) = std::sync::mpsc::channel();
    let answerer = std::thread::spawn(move || answer(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let options = Options::both(Config::default().unbatched());
    let mut ends = connect(&session, gid, port, options, None)?;
    let began = Instant::now();
    for round in 0..rounds {
        ends.sender.send(&round.to_le_bytes(), None)?;
        ends.sender.flush()?;
        let message = ends.receiver.recv(None)?.ok_or("the other end has ended")?;
        assert_eq!(message.to_vec(), round.to_le_bytes());
    }
    println!("{rounds} questions, {:?} each", began.elapsed() / rounds.max(1));
    ends.sender.finish(None)?;
    answerer.join().expect("the answerer does not panic")?;
    Ok(())
}

fn answer(tell: &std::sync::mpsc::Sender<(elver::Gid, u16)>) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), listener.port()));
    let mut ends = listener.accept(None)?;
    while let Some(message) = ends.receiver.recv(None)? {
        let mut question = [0; 4];
        message.read(0, &mut question);
        drop(message);
        ends.sender.send(&question, None)?;
        ends.sender.flush()?;
    }
    Ok(())
}
