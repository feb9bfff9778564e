//! Streams in tasks.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{SMALL, TestNode, byte, config, session_at};
use elver::tokio::AsyncSession;
use elver_random::Rng;
use elver_stream::{AsyncStream, Interest, Listener, ListenerOptions, Options};
use elver_testkit::wait_for;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional};

fn run(task: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // One that hangs says so.
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await.unwrap() });
}

/// Both ends, in tasks of one thread.
async fn pair(
    session: &Rc<AsyncSession>,
    options: Options,
) -> (Listener, AsyncStream, AsyncStream) {
    let listener = Listener::bind(session.session(), 0, ListenerOptions::default()).unwrap();
    let (gid, port) = (session.session().gid(), listener.port());
    let (accepted, connected) = tokio::join!(
        listener.accept_async(session),
        AsyncStream::connect(session, gid, port, options)
    );
    (listener, accepted.unwrap(), connected.unwrap())
}

/// Writes so many bytes, in pieces of any size, and then no more.
async fn write_all(mut writer: impl AsyncWriteExt + Unpin, id: u64, total: u64, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut at = 0;
    while at < total {
        let len = (1 + u64::from(rng.next_u32()) % 9_000).min(total - at);
        let bytes: Vec<u8> = (at..at + len).map(|at| byte(id, at)).collect();
        writer.write_all(&bytes).await.unwrap();
        at += len;
        if rng.next_u32().is_multiple_of(8) {
            writer.flush().await.unwrap();
        }
    }
    writer.shutdown().await.unwrap();
}

async fn read_all(mut reader: impl AsyncReadExt + Unpin, id: u64, total: u64) {
    let mut bytes = vec![0; 7_000];
    let mut at = 0;
    loop {
        let read = reader.read(&mut bytes).await.unwrap();
        if read == 0 {
            break;
        }
        for found in &bytes[..read] {
            assert_eq!(*found, byte(id, at), "byte {at} of stream {id}");
            at += 1;
        }
    }
    assert_eq!(at, total);
}

/// client ⇄ proxy ⇄ server, all in tasks of one thread and on one session: tokio's own copying between.
#[test]
fn tokio_copies_between_streams() {
    const TOTAL: u64 = 300_000;
    let node = TestNode::start(config(20, 1));
    run(async {
        let session = Rc::new(AsyncSession::new(session_at(&node)).unwrap());
        for seed in 0..3 {
            println!("seed {seed}");
            let (_outer, mut inside, client) = pair(&session, SMALL).await;
            let (_inner, server, mut outside) = pair(&session, SMALL).await;
            let proxy = async {
                let copied = copy_bidirectional(&mut inside, &mut outside).await.unwrap();
                assert_eq!(copied, (TOTAL, TOTAL / 2));
            };
            let (client_reads, client_writes) = tokio::io::split(client);
            let (server_reads, server_writes) = tokio::io::split(server);
            tokio::join!(
                proxy,
                write_all(client_writes, 1, TOTAL, seed),
                read_all(client_reads, 2, TOTAL / 2),
                write_all(server_writes, 2, TOTAL / 2, seed + 100),
                read_all(server_reads, 1, TOTAL),
            );
        }
    });
}

/// Many streams of one listener in tasks of their own, each with a question and its answer.
#[test]
fn tasks_ask_and_are_answered() {
    const STREAMS: u32 = 20;
    let node = TestNode::start(config(21, 1));
    run(async {
        let session = Rc::new(AsyncSession::new(session_at(&node)).unwrap());
        let listener = Listener::bind(session.session(), 0, ListenerOptions::default()).unwrap();
        let (gid, port) = (session.session().gid(), listener.port());
        let serve = async {
            let tasks = tokio::task::LocalSet::new();
            let serve = tasks.run_until(async {
                let mut answering = Vec::new();
                for _ in 0..STREAMS {
                    let stream = listener.accept_async(&session).await.unwrap();
                    answering.push(tokio::task::spawn_local(async move {
                        let mut stream = BufReader::new(stream);
                        let mut line = String::new();
                        while stream.read_line(&mut line).await.unwrap() > 0 {
                            stream.write_all(line.as_bytes()).await.unwrap();
                            line.clear();
                        }
                    }));
                }
                for answering in answering {
                    answering.await.unwrap();
                }
            });
            serve.await;
        };
        let ask = async |number: u32| {
            let stream = AsyncStream::connect(&session, gid, port, SMALL).await.unwrap();
            let mut stream = BufReader::new(stream);
            for round in 0..20 {
                let question = format!("{number}, {round}\n");
                stream.write_all(question.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_line(&mut answer).await.unwrap();
                assert_eq!(answer, question);
            }
        };
        let asks = async {
            let tasks = tokio::task::LocalSet::new();
            let ask = &ask;
            tasks
                .run_until(async move {
                    let mut asking: Vec<_> = (0..STREAMS).map(|id| Box::pin(ask(id))).collect();
                    std::future::poll_fn(|cx| {
                        asking.retain_mut(|asking| asking.as_mut().poll(cx).is_pending());
                        if asking.is_empty() {
                            std::task::Poll::Ready(())
                        } else {
                            std::task::Poll::Pending
                        }
                    })
                    .await;
                })
                .await;
        };
        tokio::join!(serve, asks);
    });
}

/// A reader that does nothing holds a writer's task, and no other.
#[test]
fn a_task_waits_for_room() {
    let node = TestNode::start(config(22, 1));
    run(async {
        let session = Rc::new(AsyncSession::new(session_at(&node)).unwrap());
        let (_listener, mut accepted, mut connected) = pair(&session, SMALL).await;
        let short = Duration::from_millis(20);
        let all = vec![5; 50_000];
        assert!(tokio::time::timeout(short, connected.write_all(&all)).await.is_err());
        let taken = connected.stream().counters().bytes_written as usize;
        assert!((3_000..=4_096).contains(&taken), "{taken}");
        wait_for("some of it to be there", || {
            accepted.stream().arm(Interest::Readable).unwrap().is_none().then_some(())
        });
        accepted.read_exact(&mut vec![0; taken]).await.unwrap();
        connected.write_all(b"goes on").await.unwrap();
        connected.flush().await.unwrap();
        let mut said = [0; 7];
        accepted.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"goes on");
        drop(connected.into_inner());
        assert_eq!(accepted.read(&mut said).await.unwrap(), 0);
    });
}
