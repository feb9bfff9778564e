//! HTTP over Unix sockets, as both doors of the orchestrator speak it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::net::UnixListener;
use tokio::time::Instant;

use super::room::{Part, Room};
use crate::http;
pub(super) use crate::http::{
    BODY_TIME_MAX, HeadTime, Heads, Reply, closing, converse, discard, json, unread, with_type,
};
use crate::progress::WRITE_MAX;

/// The largest error of a start, in bytes.
const ERROR_MAX: usize = 256 << 10;

/// Listens where a socket of an earlier run may be left. Its owner alone may connect.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A request's body.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    /// What came behind it.
    pub(super) trailers: Option<HeaderMap>,
    /// Its part of what there may be, for as long as the bytes are kept.
    pub(super) room: Part,
}

/// Bytes, and their part of what there may be.
struct Kept {
    bytes: Bytes,
    _room: Part,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that were part of somebody's, as part of another one's, if he has room for them before one who takes nothing is left.
/// They have it until the last of them is dropped: those of an answer when they have been written.
pub(super) async fn hand_on(bytes: Bytes, room: Option<Part>, to: Arc<Room>) -> Option<Bytes> {
    let his = tokio::time::timeout(WRITE_MAX, Part::whole(to, bytes.len())).await.ok()?;
    drop(room);
    Some(Bytes::from_owner(Kept { bytes, _room: his }))
}

/// Why there is no body, with what to answer instead.
#[derive(Debug)]
pub(super) enum NoBody {
    /// It has more bytes than one may have.
    TooLarge(Box<Reply>),
    /// It did not come whole, for this reason.
    Missing(Box<Reply>, String),
}

impl NoBody {
    /// What to answer.
    pub(super) fn reply(self) -> Reply {
        match self {
            NoBody::TooLarge(reply) | NoBody::Missing(reply, _) => *reply,
        }
    }
}

/// A request's body of at most so many bytes, if its peer sends it within this time. It waits for room.
pub(super) async fn body(
    body: &mut Incoming,
    room: Arc<Room>,
    most: usize,
    time: Duration,
) -> Result<Whole, NoBody> {
    body_within(body, room, most, time, Duration::MAX).await
}

/// The same, which waits for room for so long in all.
pub(super) async fn body_within(
    body: &mut Incoming,
    room: Arc<Room>,
    most: usize,
    time: Duration,
    mut patience: Duration,
) -> Result<Whole, NoBody> {
    let mut room = Part::new(room);
    let grow = async |length| {
        let begun = Instant::now();
        if tokio::time::timeout(patience, room.grow(length)).await.is_err() {
            return Err(http::NoBody {
                status: StatusCode::TOO_MANY_REQUESTS,
                kind: "TooMany",
                what: "you have as many bytes of requests and answers here as one caller may have; wait for some, read \
                       your answers, and try again"
                    .into(),
            });
        }
        patience = patience.saturating_sub(begun.elapsed());
        Ok(())
    };
    match http::body(body, most, time, grow).await {
        Ok((bytes, trailers)) => {
            room.end(bytes.len());
            Ok(Whole { bytes, trailers, room })
        }
        Err(error) => {
            let reply = Box::new(failure(error.status, error.kind, &error.what));
            match error.status {
                StatusCode::PAYLOAD_TOO_LARGE => Err(NoBody::TooLarge(reply)),
                _ => Err(NoBody::Missing(reply, error.what)),
            }
        }
    }
}

/// The beginning of what a runtime says of its failed start. It waits for room.
pub(super) async fn reason(request: Request<Incoming>, room: Arc<Room>, most: usize) -> String {
    match body(&mut request.into_body(), room, ERROR_MAX, BODY_TIME_MAX).await {
        Ok(Whole { bytes, .. }) => String::from_utf8_lossy(&bytes).chars().take(most).collect(),
        Err(NoBody::TooLarge(_)) => {
            format!("its reason cannot be read: it has more than {ERROR_MAX} bytes")
        }
        Err(NoBody::Missing(_, why)) => format!("its reason cannot be read: {why}"),
    }
}

/// An error in the form that Lambda has for it.
pub(super) fn failure(status: StatusCode, kind: &str, what: &str) -> Reply {
    json(status, &serde_json::json!({"errorType": kind, "errorMessage": what}))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::{LocalSet, spawn_local};

    use super::super::room::RESPONSE_MAX;
    use super::super::room::tests::{free, room};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_the_callers_until_it_is_written() {
        let (containers, callers) = (room(10), room(6));
        let body = Bytes::from_static(b"12345");
        let is_free = |of_containers, of_callers| {
            assert_eq!((free(&containers), free(&callers)), (of_containers, of_callers));
        };
        let part = async || Some(Part::whole(containers.clone(), 5).await);
        let first = hand_on(body.clone(), part().await, callers.clone()).await.unwrap();
        is_free(10, 1);
        // One who takes nothing holds up nobody for ever.
        assert!(hand_on(body.clone(), part().await, callers.clone()).await.is_none());
        is_free(10, 1);
        let rest = first.slice(1..);
        drop(first);
        is_free(10, 1);
        drop(rest);
        assert!(hand_on(body, part().await, callers.clone()).await.is_some());
        is_free(10, 6);
    }

    /// Each connection of a container could have had it kept beside the bodies that there may be.
    #[tokio::test(start_paused = true)]
    async fn why_a_start_failed_is_a_body_among_others() {
        const MANY: usize = 16 << 20;
        let room = room(MANY);
        let held = Part::whole(room.clone(), MANY).await;
        let (mut client, server) = tokio::io::duplex(4096);
        let tell = |request| {
            let room = room.clone();
            async move {
                let why = reason(request, room, 3).await;
                with_type(StatusCode::OK, "text/plain", why.into())
            }
        };
        let heads = Heads { bytes: 8192, time: None };
        let conversation = converse(server, heads, tell, std::future::pending());
        let asking = async {
            const SAID: &[u8] =
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwhy!";
            client.write_all(SAID).await.unwrap();
            let mut answer = String::new();
            let early = client.read_to_string(&mut answer);
            assert!(tokio::time::timeout(BODY_TIME_MAX * 2, early).await.is_err());
            drop(held);
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\nwhy"), "{answer}");
        };
        tokio::join!(asking, conversation);
        assert_eq!(free(&room), MANY);
    }

    /// It waited without an end, as long as others of its caller's were kept.
    #[tokio::test(start_paused = true)]
    async fn a_body_waits_for_room_for_so_long() {
        const POST: &[u8] =
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1";
        const MINUTE: Duration = Duration::from_secs(60);
        const MANY: usize = 16 << 20;
        let room = room(MANY);
        for (keeps, status) in [(MINUTE / 2, "200 OK"), (MINUTE * 2, "429 Too Many Requests")] {
            let held = Part::whole(room.clone(), MANY).await;
            let (mut client, server) = tokio::io::duplex(4096);
            let take = |mut request: Request<Incoming>| {
                let room = room.clone();
                async move {
                    // The time for its bytes is not what it waits by.
                    let second = Duration::from_secs(1);
                    match body_within(request.body_mut(), room, 100, second, MINUTE).await {
                        Ok(body) => with_type(StatusCode::OK, "text/plain", body.bytes),
                        Err(none) => none.reply(),
                    }
                }
            };
            let heads = Heads { bytes: 8192, time: None };
            let conversation = converse(server, heads, take, std::future::pending());
            let asking = async {
                client.write_all(POST).await.unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let keeping = async {
                tokio::time::sleep(keeps).await;
                drop(held);
            };
            let (answer, (), ()) = tokio::join!(asking, conversation, keeping);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        }
        assert_eq!(free(&room), MANY);
    }

    /// Each of ten streams had the room of the largest from its first byte on, and the rest waited for one of them to end.
    #[tokio::test(start_paused = true)]
    async fn streams_that_pause_keep_nobody_waiting() {
        const MINUTE: Duration = Duration::from_secs(60);
        const HEAD: &str = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\n1\r\n";
        let room = Room::new();
        let connect = || {
            let (client, server) = tokio::io::duplex(4096);
            let room = room.clone();
            let length = move |request: Request<Incoming>| {
                let room = room.clone();
                async move {
                    let told = body(&mut request.into_body(), room, RESPONSE_MAX, MINUTE).await;
                    let told = told.map_or_else(|_| "none".into(), |b| b.bytes.len().to_string());
                    with_type(StatusCode::OK, "text/plain", told.into())
                }
            };
            let heads = Heads { bytes: 8192, time: None };
            spawn_local(async move {
                converse(server, heads, length, std::future::pending()).await;
            });
            client
        };
        let asking = async {
            let mut held: Vec<_> = (0..20).map(|_| connect()).collect();
            for client in &mut held {
                client.write_all(HEAD.as_bytes()).await.unwrap();
            }
            held.push(connect());
            let last = held.last_mut().unwrap();
            last.write_all(format!("{HEAD}0\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            last.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\n1"), "{answer}");
        };
        let asking = tokio::time::timeout(MINUTE / 2, asking);
        LocalSet::new().run_until(asking).await.expect("an answer");
    }
}
