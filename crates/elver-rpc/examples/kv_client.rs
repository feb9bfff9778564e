//! A client of `kv_service` on the same host: `kv_client PORT [VALUES]`.

mod kv;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use elver::Session;
use elver_rpc::{Client, ClientOptions, Code};
use kv::{COUNT, GET, PUT, Put};

const SECOND: Option<Duration> = Some(Duration::from_secs(1));
const UNDER_WAY: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().ok_or("kv_client PORT [VALUES]")?.parse()?;
    let values: u32 = arguments.next().map_or(Ok(1_000), |values| values.parse())?;
    let session = Session::connect_default()?;
    let client = Client::connect(&session, session.gid(), port, ClientOptions::default(), SECOND)?;

    // Many under way: none waits for the one before.
    let began = Instant::now();
    let mut calls = VecDeque::new();
    for number in 0..values {
        let put = Put { key: format!("key {number}"), value: vec![number as u8; 100] };
        calls.push_back(client.start(PUT, &put, SECOND)?);
        if calls.len() == UNDER_WAY
            && let Some(call) = calls.pop_front()
        {
            call.wait()?;
        }
    }
    calls.into_iter().try_for_each(|call| call.wait())?;
    println!("{values} values put, {:?} each", began.elapsed() / values.max(1));

    let value = client.call(GET, &"key 7".to_string(), SECOND)?;
    println!("key 7 has {} bytes, revision {}", value.bytes.len(), value.revision);
    match client.call(GET, &"nothing".to_string(), SECOND) {
        Err(error) if error.code() == Code::NotFound => println!("{error}"),
        other => return Err(format!("this should not be: {other:?}").into()),
    }
    println!("{} keys", client.call(COUNT, &(), SECOND)?);
    Ok(())
}
