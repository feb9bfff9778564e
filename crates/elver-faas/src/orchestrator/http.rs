//! HTTP over Unix sockets, as both doors of the orchestrator speak it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http;
pub(super) use crate::http::{
    BODY_TIME_MAX, Heads, Reply, closing, converse, discard, json, with_type,
};
use crate::progress::WRITE_MAX;

/// The largest request or response of a function, in bytes: Lambda's own limit.
pub(super) const BODY_MAX: usize = 6 << 20;

/// The largest body that is read though it is of no use, in bytes.
const IDLE_MAX: usize = 64 << 10;

/// The largest error of a start, in bytes.
const ERROR_MAX: usize = 256 << 10;

/// Most bytes of bodies at once of one container, and of one caller; what comes beyond waits.
pub(super) const BODIES_MAX: usize = 64 << 20;

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
    pub(super) room: OwnedSemaphorePermit,
}

/// Bytes, and their part of what there may be.
struct Kept {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which have their room until the last of them is dropped: those of an answer when they have been written.
pub(super) fn kept(bytes: Bytes, room: OwnedSemaphorePermit) -> Bytes {
    Bytes::from_owner(Kept { bytes, _room: room })
}

/// Bytes that were part of somebody's, as part of another one's, once he has room for them. `None` if he has none for as long
/// as who takes nothing is waited for.
pub(super) async fn hand_on(
    bytes: Bytes,
    room: Option<OwnedSemaphorePermit>,
    to: Arc<Semaphore>,
) -> Option<Bytes> {
    let more = to.acquire_many_owned(bytes.len() as u32);
    let his = tokio::time::timeout(WRITE_MAX, more).await.ok()?.ok()?;
    drop(room);
    Some(kept(bytes, his))
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

/// A request's body, once there is room for it, if it comes within this time.
pub(super) async fn body(
    body: &mut Incoming,
    room: Arc<Semaphore>,
    time: Duration,
) -> Result<Whole, NoBody> {
    let length = body.size_hint().upper();
    let length = length.map_or(BODY_MAX, |length| length.min(BODY_MAX as u64) as usize);
    let room = room.acquire_many_owned(length as u32).await;
    let mut room = room.map_err(|_| {
        let what = "the container ends";
        let reply = failure(StatusCode::SERVICE_UNAVAILABLE, "Ended", what);
        NoBody::Missing(Box::new(reply), what.into())
    })?;
    match http::body(body, BODY_MAX, time).await {
        Ok((bytes, trailers)) => {
            // Of one whose length was not said, it may be less.
            drop(room.split(length.saturating_sub(bytes.len())));
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

/// The answer to a request whose body is of no use. A short one is read, since who is still about to write it would not hear
/// the answer else; behind another one the connection ends.
pub(super) async fn unread(request: Request<Incoming>, reply: Reply) -> Reply {
    let length = request.body().size_hint().upper();
    let is_short = length.is_some_and(|length| length <= IDLE_MAX as u64);
    let mut body = request.into_body();
    match is_short && discard(&mut body, IDLE_MAX, BODY_TIME_MAX).await {
        true => reply,
        false => closing(reply),
    }
}

/// The beginning of what a runtime says of its failed start.
pub(super) async fn reason(request: Request<Incoming>, most: usize) -> String {
    match http::body(&mut request.into_body(), ERROR_MAX, BODY_TIME_MAX).await {
        Ok((body, _)) => String::from_utf8_lossy(&body).chars().take(most).collect(),
        Err(error) => format!("its reason cannot be read: {}", error.what),
    }
}

/// An error in the form that Lambda has for it.
pub(super) fn failure(status: StatusCode, kind: &str, what: &str) -> Reply {
    json(status, &serde_json::json!({"errorType": kind, "errorMessage": what}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_the_callers_until_it_is_written() {
        let (containers, callers) = (Arc::new(Semaphore::new(10)), Arc::new(Semaphore::new(6)));
        let room = || containers.clone().try_acquire_many_owned(5).ok();
        let body = Bytes::from_static(b"12345");
        let first = hand_on(body.clone(), room(), callers.clone()).await.unwrap();
        assert_eq!((containers.available_permits(), callers.available_permits()), (10, 1));
        // One who takes nothing holds up nobody for ever.
        assert!(hand_on(body.clone(), room(), callers.clone()).await.is_none());
        assert_eq!(containers.available_permits(), 10);
        let part = first.slice(1..);
        drop(first);
        assert_eq!(callers.available_permits(), 1);
        drop(part);
        assert!(hand_on(body, room(), callers.clone()).await.is_some());
        assert_eq!(callers.available_permits(), 6);
    }
}
