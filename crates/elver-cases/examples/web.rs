//! An HTTP server of one file, and a client that waits for each response: nothing is batched (RB², section V-C,
//! case 3).
//!
//! Run it beside a daemon: `cargo run --release --example web -p elver-cases -- 100000`.

use std::time::Instant;

use elver::{Gid, Session};
use elver_cases::http;
use elver_ring::{Config, Ends, Listener, ListenerOptions, Options, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bytes of the file.
const FILE: usize = 1_024;
const PATH: &str = "/file";

fn main() -> Result<()> {
    let requests: u32 = std::env::args().nth(1).map_or(Ok(1_000), |requests| requests.parse())?;
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || serve(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let config = Config::default().for_messages_of((FILE + http::HEAD_MAX) as u32)?;
    let mut ends = connect(&session, gid, port, Options::both(config), None)?;
    let request = http::get(PATH, "localhost");
    let began = Instant::now();
    for _ in 0..requests {
        ends.sender.send(&request, None)?;
        ends.sender.flush()?;
        let response = ends.receiver.recv(None)?.ok_or("the server has ended")?.to_vec();
        assert_eq!(http::body(&response)?.len(), FILE);
    }
    let micros = began.elapsed().as_secs_f64() * 1e6 / f64::from(requests);
    ends.sender.finish(None)?;
    assert!(ends.receiver.recv(None)?.is_none(), "the server says nothing unasked");
    server.join().expect("the server does not panic")?;
    println!("{requests} files of {FILE} bytes, {micros:.1} µs each");
    Ok(())
}

fn serve(tell: &std::sync::mpsc::Sender<(Gid, u16)>) -> Result<()> {
    let mut server = http::Server::new(PATH, vec![7; FILE]);
    let session = Session::connect_default()?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    tell.send((session.gid(), listener.port()))?;
    let Ends { mut sender, mut receiver, .. } = listener.accept(None)?;
    while let Some(request) = receiver.recv(None)? {
        let response = server.answer(&request.to_vec());
        let mut room = sender.reserve(response.len(), None)?;
        room.fill_from(&[response.head, response.body]);
        room.commit()?;
        sender.flush()?;
    }
    Ok(sender.finish(None)?)
}
