//! The front door: HTTP over a Unix socket, where callers invoke functions. The system says who asks.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elver::Gid;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_local};

use super::callers::Callers;
use super::core::Orchestrator;
use super::http::{self, HeadTime, Heads, Reply};
use super::room::{REQUEST_MAX, Room};
use super::stuck::Stuck;
use super::tables::{Answer, Pending};
use crate::accepting;
use crate::client::{
    DESTINATIONS_HEADER, ERROR_HEADER, LAUNCH_HEADER, Listing, START_HEADER, StuckContainer,
    TOTAL_HEADER,
};
use crate::config::Owner;
use crate::gids;
use crate::protocol::CONNECTIONS_MAX;
use crate::schedule::{ContainerId, Failure, RequestId};

/// How long a caller may be silent between two requests, and take to send the head of one; and how long that may be.
const HEADS: Heads = Heads { bytes: 16 << 10, time: Some(HeadTime::Each(Duration::from_secs(10))) };

/// How long a caller's body may wait in all for room among his others, which are those of requests that nobody has taken yet
/// and of answers that he does not read.
const ROOM_MAX: Duration = Duration::from_secs(30);

/// Listens; all of the host's users may ask, and each is told what he may have. Once `ending` is dropped, it ends when what
/// has been asked is answered.
pub(super) fn listen(
    orchestrator: Rc<Orchestrator>,
    path: &Path,
    ending: watch::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let listener = http::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(spawn_local(serve(orchestrator, listener, ending)))
}

async fn serve(
    orchestrator: Rc<Orchestrator>,
    listener: UnixListener,
    mut ending: watch::Receiver<()>,
) {
    let ended = ending.clone();
    let room = Arc::new(Semaphore::new(orchestrator.limits.front));
    let callers = Callers::new(orchestrator.limits.caller);
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await.ok()?;
            Some((permit, accepting::next(|cx| listener.poll_accept(cx)).await))
        };
        let (permit, (stream, _)) = tokio::select! {
            Some(next) = next => next,
            _ = ending.changed() => break,
        };
        while connections.try_join_next().is_some() {}
        let Ok(uid) = stream.peer_cred().map(|cred| cred.uid()) else { continue };
        let caller = match callers.connected(uid, is_stranger(&orchestrator, uid)) {
            Ok(caller) => caller,
            Err(why) => {
                // One that has not asked yet cannot be told more than fits at once.
                let _ = stream.try_write(too_many(why).as_bytes());
                continue;
            }
        };
        let (orchestrator, mut ended) = (orchestrator.clone(), ended.clone());
        connections.spawn_local(async move {
            let answer = |request| answer(orchestrator.clone(), uid, caller.bodies(), request);
            let ended = async move { drop(ended.changed().await) };
            http::converse(stream, HEADS, answer, ended).await;
            drop((permit, caller));
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// What one is told who has as many connections as he may.
fn too_many(why: &str) -> String {
    let body = format!("{{\"errorType\":\"TooMany\",\"errorMessage\":\"{why}\"}}");
    let length = body.len();
    format!(
        "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

async fn answer(
    orchestrator: Rc<Orchestrator>,
    caller: u32,
    bodies: Arc<Room>,
    request: Request<Incoming>,
) -> Reply {
    let path = request.uri().path().to_string();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match (request.method(), &parts[..]) {
        (&Method::GET, ["functions"]) => list(&orchestrator, caller),
        (&Method::POST, ["functions", name, "invocations"]) => {
            invoke(&orchestrator, caller, bodies, name, request).await
        }
        _ => {
            let what = format!("there is no {path}");
            let reply = http::failure(StatusCode::NOT_FOUND, "NotFound", &what);
            http::unread(request, reply).await
        }
    }
}

async fn invoke(
    orchestrator: &Rc<Orchestrator>,
    caller: u32,
    bodies: Arc<Room>,
    name: &str,
    request: Request<Incoming>,
) -> Reply {
    let arrived = Instant::now();
    // Who may not invoke a function does not learn whether it is there.
    if !may_invoke(orchestrator, caller, name) {
        return http::unread(request, refused(&Failure::Unknown(name.into()))).await;
    }
    let destinations = match destinations(&request) {
        Ok(destinations) => destinations,
        Err(what) => {
            let reply = http::failure(StatusCode::BAD_REQUEST, "Destinations", &what);
            return http::unread(request, reply).await;
        }
    };
    let his = bodies.clone();
    let mut body = request.into_body();
    let body =
        http::body_within(&mut body, bodies, REQUEST_MAX, http::BODY_TIME_MAX, ROOM_MAX).await;
    let body = match body {
        Ok(body) => body,
        Err(none) => return none.reply(),
    };
    let (reply, answered) = oneshot::channel();
    let placed = orchestrator.with(|schedule, now| schedule.request(now, name, destinations));
    let id = match placed {
        Ok(id) => id,
        Err(failure) => return refused(&failure),
    };
    // Nothing else has run since, so that nobody can have taken it yet.
    let body = Some(body);
    let pending = Pending { body, reply, arrived, taken: None, is_being_answered: false };
    orchestrator.state.borrow_mut().pending.insert(id, pending);
    let _asked = Asked { orchestrator, id };
    match answered.await {
        Ok(Ok(answer)) => result(answer, his).await,
        Ok(Err(failure)) => refused(&failure),
        Err(_) => http::failure(StatusCode::SERVICE_UNAVAILABLE, "Ended", "the orchestrator ends"),
    }
}

/// A request whose caller waits, unless he goes: this is dropped then.
struct Asked<'a> {
    orchestrator: &'a Orchestrator,
    id: RequestId,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.orchestrator.state.borrow_mut();
        if state.schedule.withdraw(self.id) {
            state.pending.remove(&self.id);
        }
    }
}

/// What a request wants to be connected to.
fn destinations(request: &Request<Incoming>) -> Result<BTreeSet<Gid>, String> {
    let Some(value) = request.headers().get(DESTINATIONS_HEADER) else {
        return Ok(BTreeSet::new());
    };
    let text = value.to_str().map_err(|error| format!("{DESTINATIONS_HEADER}: {error}"))?;
    let parse =
        |word| gids::parse(word).map_err(|what| format!("{DESTINATIONS_HEADER} has {what}"));
    let gids: BTreeSet<Gid> = text.split_whitespace().map(parse).collect::<Result<_, String>>()?;
    if gids.len() > CONNECTIONS_MAX {
        let has = gids.len();
        return Err(format!(
            "{DESTINATIONS_HEADER} has {has}; at most {CONNECTIONS_MAX} are taken"
        ));
    }
    Ok(gids)
}

/// Who may invoke nothing: neither root nor the orchestrator's own user, no owner, and nobody whom one named.
fn is_stranger(orchestrator: &Orchestrator, caller: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_owners = |owner: &Owner| owner.uid == caller || owner.callers.contains(&caller);
    ![0, own].contains(&caller) && !orchestrator.config.owners.values().any(is_owners)
}

/// Root, the orchestrator's own user, the function's owner, and whom its owner named.
fn may_invoke(orchestrator: &Orchestrator, caller: u32, name: &str) -> bool {
    let Some(function) = orchestrator.config.functions.get(name) else { return false };
    let owner = orchestrator.config.owner_of(function);
    is_owner(orchestrator, caller, &function.owner) || owner.callers.contains(&caller)
}

/// Root, the orchestrator's own user, and an owner.
fn is_owner(orchestrator: &Orchestrator, caller: u32, owner: &str) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let owner = orchestrator.config.owners.get(owner);
    [0, own].contains(&caller) || owner.is_some_and(|owner| owner.uid == caller)
}

fn list(orchestrator: &Orchestrator, caller: u32) -> Reply {
    let (table, stuck) = {
        let state = orchestrator.state.borrow();
        let told = |(id, stuck): (&ContainerId, &Stuck)| StuckContainer {
            container: *id,
            owner: stuck.owner.clone(),
            tries: stuck.tries,
            why: stuck.why.clone(),
        };
        (state.schedule.table(), state.stuck.iter().map(told).collect::<Vec<_>>())
    };
    let is_his = |name: &str| may_invoke(orchestrator, caller, name);
    let listing = Listing {
        functions: orchestrator
            .config
            .functions
            .keys()
            .filter(|name| is_his(name))
            .cloned()
            .collect(),
        processes: table.into_iter().filter(|row| is_his(&row.function)).collect(),
        stuck: stuck
            .into_iter()
            .filter(|stuck| is_owner(orchestrator, caller, &stuck.owner))
            .collect(),
    };
    http::json(StatusCode::OK, &listing)
}

/// An answer, among the caller's bodies: what he does not read is no longer its container's.
async fn result(answer: Answer, bodies: Arc<Room>) -> Reply {
    let Some(body) = http::hand_on(answer.body, answer.room, bodies).await else {
        let what = "you have as many bytes of answers as one caller may have, and read none";
        return http::failure(StatusCode::TOO_MANY_REQUESTS, "TooMany", what);
    };
    let mut reply = http::with_type(StatusCode::OK, &answer.content_type, body);
    let headers = reply.headers_mut();
    for (name, value) in [
        (START_HEADER, answer.start.to_string()),
        (LAUNCH_HEADER, answer.launch.as_micros().to_string()),
        (TOTAL_HEADER, answer.total.as_micros().to_string()),
        (ERROR_HEADER, answer.is_error.to_string()),
    ] {
        let value = HeaderValue::from_str(&value).expect("words and numbers");
        headers.insert(name, value);
    }
    reply
}

fn refused(failure: &Failure) -> Reply {
    let (status, kind) = match failure {
        Failure::Unknown(_) => (StatusCode::NOT_FOUND, "Unknown"),
        Failure::TooMany { .. } => (StatusCode::TOO_MANY_REQUESTS, "TooMany"),
        Failure::NotStarted(_) => (StatusCode::GATEWAY_TIMEOUT, "NotStarted"),
        Failure::TimedOut(_) => (StatusCode::GATEWAY_TIMEOUT, "TimedOut"),
        Failure::Ended(_) => (StatusCode::BAD_GATEWAY, "Ended"),
        Failure::Container(_) => (StatusCode::BAD_GATEWAY, "Container"),
    };
    http::failure(status, kind, &failure.to_string())
}
