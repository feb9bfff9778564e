//! A database behind a pair of rings, asked as YCSB's workload C does, many requests under way (RB², section V-C,
//! case 2).
//!
//! Run it beside a daemon: `cargo run --release --example database -p elver-cases -- 300000`.

use std::collections::VecDeque;
use std::time::Instant;

use elver::{Gid, Session};
use elver_cases::store::{self, KEY, Key, Store, VALUE};
use elver_cases::ycsb;
use elver_ring::{Config, Ends, Listener, ListenerOptions, Message, Options, Wire, connect};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const RECORDS: u32 = 10_000;
/// Requests under way: no more than responses have slots, so that the server never waits for room.
const UNDER_WAY: usize = 64;

fn main() -> Result<()> {
    let requests: usize =
        std::env::args().nth(1).map_or(Ok(10_000), |requests| requests.parse())?;
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || serve(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let there = Config::default().for_messages_of(KEY as u32)?;
    let back = Config::default().for_messages_of(VALUE as u32)?;
    let mut ends =
        connect(&session, gid, port, Options { there, back, ..Options::default() }, None)?;
    let began = Instant::now();
    let mut keys = ycsb::keys(RECORDS, 1).take(requests);
    let mut asked = VecDeque::new();
    let mut answered = 0;
    let mut value = [0; VALUE];
    loop {
        while asked.len() < UNDER_WAY {
            let Some(key) = keys.next() else { break };
            ends.sender.send(&key, None)?;
            asked.push_back(key);
        }
        let Some(key) = asked.pop_front() else { break };
        ends.sender.flush()?;
        let response = ends.receiver.recv(None)?.ok_or("the server has ended")?;
        response.read(0, &mut value);
        assert!(store::is_value_of(&value, &key), "not the answer for this key");
        answered += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    ends.sender.finish(None)?;
    assert!(ends.receiver.recv(None)?.is_none(), "the server says nothing unasked");
    server.join().expect("the server does not panic")?;
    println!("{answered} requests answered, {:.0} a second", answered as f64 / seconds);
    Ok(())
}

fn serve(tell: &std::sync::mpsc::Sender<(Gid, u16)>) -> Result<()> {
    let store = Store::with_records(RECORDS)?;
    let session = Session::connect_default()?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    tell.send((session.gid(), listener.port()))?;
    let Ends { mut sender, mut receiver, .. } = listener.accept(None)?;
    let mut key = [0; KEY];
    loop {
        if !take(receiver.try_recv()?, &mut key)? {
            // What was answered goes out before this waits for more.
            sender.flush()?;
            if !take(receiver.recv(None)?, &mut key)? {
                return Ok(sender.finish(None)?);
            }
        }
        sender.send(&store.answer(&key)?, None)?;
    }
}

/// Reads a request; false if there is none.
fn take(request: Option<Message<'_, Wire>>, key: &mut Key) -> Result<bool> {
    let Some(request) = request else { return Ok(false) };
    if request.len() != KEY {
        return Err(format!("a request has {KEY} bytes, not {}", request.len()).into());
    }
    request.read(0, key);
    Ok(true)
}
