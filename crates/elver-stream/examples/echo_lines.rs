//! Lines and their answers, by what std has for any reader and writer.
//!
//! Run it beside a daemon: `cargo run --release --example echo_lines -p elver-stream -- 10000`.

use std::io::{self, BufRead, BufReader, Write};
use std::time::Instant;

use elver::Session;
use elver_stream::{Listener, ListenerOptions, Options, Shutdown, Stream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(1_000), |rounds| rounds.parse())?;
    // A session belongs to its thread; between processes it is the same.
    let (tell, told) = std::sync::mpsc::channel();
    let answerer = std::thread::spawn(move || answer(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let stream = Stream::connect(&session, gid, port, Options::default(), None)?;
    let (mut reader, mut writer) = (BufReader::new(&stream), &stream);
    let began = Instant::now();
    let mut line = String::new();
    for round in 1..=rounds {
        // It goes out when the answer is waited for, at the latest.
        writeln!(writer, "line {round}")?;
        line.clear();
        reader.read_line(&mut line)?;
        assert_eq!(line, format!("line {round}\n"));
    }
    println!("{rounds} lines, {:?} each", began.elapsed() / rounds.max(1));
    stream.shutdown(Shutdown::Write)?;
    let answered = answerer.join().expect("the answerer does not panic")?;
    assert_eq!(answered, rounds);
    Ok(())
}

fn answer(tell: &std::sync::mpsc::Sender<(elver::Gid, u16)>) -> io::Result<u32> {
    let session = Session::connect_default().map_err(io::Error::other)?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), listener.port()));
    let stream = listener.accept(None)?;
    let (mut reader, mut writer) = (BufReader::new(&stream), &stream);
    let (mut line, mut answered) = (String::new(), 0);
    while reader.read_line(&mut line)? > 0 {
        writer.write_all(line.as_bytes())?;
        line.clear();
        answered += 1;
    }
    Ok(answered)
}
