//! Streams in tasks (feature `tokio`): tokio's own copying answers each of them.
//!
//! Run it beside a daemon: `cargo run --example echo_tasks -p elver-stream --features tokio -- 1000`.

use std::rc::Rc;

use elver::Session;
use elver::tokio::AsyncSession;
use elver_stream::{AsyncStream, Listener, ListenerOptions, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::task::{LocalSet, spawn_local};

const STREAMS: u32 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(100), |rounds| rounds.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // As a session, its streams belong to one thread.
    LocalSet::new().block_on(&runtime, async {
        let session = Rc::new(AsyncSession::new(Session::connect_default()?)?);
        let listener = Listener::bind(session.session(), 0, ListenerOptions::default())?;
        let (gid, port) = (session.session().gid(), listener.port());
        let mut asking = Vec::new();
        for number in 0..STREAMS {
            let session = session.clone();
            asking.push(spawn_local(async move {
                let options = Options::default();
                let mut stream = AsyncStream::connect(&session, gid, port, options).await?;
                for round in 0..rounds {
                    stream.write_u32(number ^ round).await?;
                    assert_eq!(stream.read_u32().await?, number ^ round);
                }
                stream.shutdown().await
            }));
        }
        let mut answering = Vec::new();
        for _ in 0..STREAMS {
            let stream = listener.accept_async(&session).await?;
            answering.push(spawn_local(async move {
                let (mut reader, mut writer) = split(stream);
                copy(&mut reader, &mut writer).await
            }));
        }
        for asking in asking {
            asking.await??;
        }
        let mut bytes = 0;
        for answering in answering {
            bytes += answering.await??;
        }
        println!("{bytes} bytes of {STREAMS} streams");
        assert_eq!(bytes, u64::from(STREAMS * rounds) * 4);
        Ok(())
    })
}
