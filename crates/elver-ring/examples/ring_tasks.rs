//! A ring in a task (feature `tokio`).
//!
//! Run it beside a daemon: `cargo run --example ring_tasks -p elver-ring --features tokio`.

use elver::Session;
use elver::tokio::AsyncSession;
use elver_ring::{Error, Listener, ListenerOptions, Options, connect};

const MESSAGES: u64 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (tell, told) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        let (gid, port) = told.recv().expect("main listens");
        send(gid, port)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sum = runtime.block_on(async {
        let session = Session::connect_default()?;
        let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
        // Nobody waits for the channel any more if the other thread has failed.
        let _ = tell.send((session.gid(), listener.port()));
        let mut ends = listener.accept(None)?;
        let session = AsyncSession::new(session)?;
        let mut sum = 0;
        while let Some(message) = ends.receiver.recv_async(&session).await? {
            let mut number = [0; 8];
            message.read(0, &mut number);
            sum += u64::from_le_bytes(number);
        }
        Ok::<_, Error>(sum)
    })?;
    sender.join().expect("the sender does not panic")?;
    println!("{MESSAGES} messages, the sum is {sum}");
    Ok(())
}

fn send(gid: elver::Gid, port: u16) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let mut ends = connect(&session, gid, port, Options::default(), None)?;
    for number in 1..=MESSAGES {
        ends.sender.send(&number.to_le_bytes(), None)?;
    }
    ends.sender.finish(None)
}
