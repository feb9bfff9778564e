//! The AWS Lambda Runtime API of one INIT process and its children, by its public documentation.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use super::core::Orchestrator;
use super::http::{self, HeadTime, Heads, NoBody, Reply, Whole};
use super::room::{RESPONSE_MAX, Room};
use super::said::{JSON, Said, said, too_large, truncated};
use super::tables::Answer;
use crate::accepting;
use crate::config::{Connections, Function, RuntimeKind};
use crate::progress::WRITE_MAX;
use crate::protocol::{Order, REGION};
use crate::schedule::{ContainerId, ProcessId, RequestId, Start, Taken};

const BASE: &str = "/2018-06-01/runtime/";

/// A handler takes its time between the request and the answer. Lambda's clients have a failure's stack in a header, of which all
/// of a container's connections could keep the most that one may have.
const HEADS: Heads =
    Heads { bytes: 128 << 10, time: Some(HeadTime::Begun(Duration::from_secs(60))) };

/// What a child says that is there for one request alone.
const WANTED: &str = "elver-request";

/// In which a library for functions says what of a configuration it knows.
const HEEDS: &str = "elver-heeds";

/// Most bytes that are read of a response beyond those that it may have.
const DISCARDED_MAX: usize = 64 << 20;

/// How much of a failed start's reason is kept, in bytes.
const REASON_MAX: usize = 2000;

/// Serves an INIT process until this is aborted.
pub(super) async fn serve(
    orchestrator: Rc<Orchestrator>,
    listener: UnixListener,
    container: ContainerId,
    process: ProcessId,
) {
    let rooms = orchestrator.state.borrow().homes.get(&container).map(|home| home.rooms.clone());
    let Some(rooms) = rooms else { return };
    // Aborting this ends the connections too.
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = rooms.connections.clone().acquire_owned().await else { return };
        let (stream, _) = accepting::next(|cx| listener.poll_accept(cx)).await;
        while connections.try_join_next().is_some() {}
        let orchestrator = orchestrator.clone();
        let bodies = rooms.bodies.clone();
        connections.spawn_local(async move {
            let answers = Cell::new(None);
            let answer =
                |request| answer(&orchestrator, process, request, bodies.clone(), &answers);
            http::converse(stream, HEADS, answer, std::future::pending()).await;
            if let Some(id) = answers.get() {
                cut(&orchestrator, process, id, "its connection ended");
            }
            drop(permit);
        });
    }
}

/// Whether a program says that it goes by something of its function's configuration: names, with commas between them.
fn heeds(headers: &HeaderMap, what: &str) -> bool {
    let lists = headers.get_all(HEEDS).into_iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|name| name.trim() == what)
}

/// `answers` is the request whose response comes by this connection.
async fn answer(
    orchestrator: &Rc<Orchestrator>,
    process: ProcessId,
    request: Request<Incoming>,
    bodies: Arc<Room>,
    answers: &Cell<Option<RequestId>>,
) -> Reply {
    let path = request.uri().path().to_string();
    let Some(rest) = path.strip_prefix(BASE) else { return unknown(request).await };
    let parts: Vec<&str> = rest.split('/').collect();
    match (request.method(), &parts[..]) {
        (&Method::GET, ["invocation", "next"]) => {
            let heeds = heeds(request.headers(), "connections");
            let wanted = request.headers().get(WANTED).cloned();
            next(orchestrator, process, wanted, heeds, bodies).await
        }
        (&Method::POST, ["invocation", id, end @ ("response" | "error")]) => {
            let Some(id) = parse_id(id) else { return unknown(request).await };
            let is_error = *end == "error";
            if let Some(refusal) = begin(orchestrator, process, id) {
                // What nobody waits for is not read.
                return http::unread(request, refusal).await;
            }
            answers.set(Some(id));
            let reply = finish(orchestrator, process, request, bodies, id, is_error).await;
            answers.set(None);
            reply
        }
        (&Method::POST, ["init" | "restore", "error"]) => {
            start_failed(orchestrator, process, request, bodies).await
        }
        // An INIT process that is here was never frozen: it goes on at once.
        (&Method::GET, ["restore", "next"]) => http::with_type(StatusCode::OK, JSON, Bytes::new()),
        _ => unknown(request).await,
    }
}

/// Waits for a request, for as long as it takes.
async fn next(
    orchestrator: &Rc<Orchestrator>,
    process: ProcessId,
    wanted: Option<HeaderValue>,
    heeds: bool,
    bodies: Arc<Room>,
) -> Reply {
    let wanted = match wanted.map(|id| id.to_str().ok()?.parse().ok()).map(|id| id.map(RequestId)) {
        Some(Some(id)) => Some(id),
        Some(None) => {
            return http::failure(StatusCode::BAD_REQUEST, "BadRequest", "no such number");
        }
        None => None,
    };
    let Some((function, handed)) = door(orchestrator, process) else { return gone() };
    let forks = orchestrator.config.functions[&function].runtime.forks();
    if forks && wanted.is_none() {
        // It would take another child's.
        let what =
            "a process that is forked asks for the one request that it is for, with Elver-Request";
        return http::failure(StatusCode::BAD_REQUEST, "BadRequest", what);
    }
    if !heeds && let Some(refusal) = is_too_old(orchestrator, process) {
        return refusal;
    }
    if wanted.is_none() {
        orchestrator.with(|schedule, now| schedule.asks(now, process));
    }
    loop {
        let notified = handed.notified();
        if let Some(taken) = orchestrator.with(|schedule, now| schedule.take(now, process, wanted))
        {
            return invocation(orchestrator, &function, taken, bodies).await;
        }
        if wanted.is_some() {
            // Its caller has gone, or an earlier orchestrator had it.
            return gone();
        }
        notified.await;
    }
}

/// What a function in Rust or C is told that was built with a library that does not know of leased queue pairs, and would go
/// without, where its configuration has them. Its process is ended if it asks for its first request; a child that forgets to say
/// what it heeds ends nobody but itself.
fn is_too_old(orchestrator: &Rc<Orchestrator>, process: ProcessId) -> Option<Reply> {
    let (function, _) = door(orchestrator, process)?;
    let Function { runtime, connections, .. } = &orchestrator.config.functions[&function];
    if (*runtime, *connections) != (RuntimeKind::Native, Connections::Leased) {
        return None;
    }
    let what = "its program was built with an elver-handler that knows no connections = \"leased\"; build it anew, or \
                configure \"shared\"";
    if !has_started(orchestrator, process) {
        end_unstarted(orchestrator, process, what);
    }
    Some(http::failure(StatusCode::FORBIDDEN, "InvalidStateTransition", what))
}

fn door(
    orchestrator: &Orchestrator,
    process: ProcessId,
) -> Option<(String, Rc<tokio::sync::Notify>)> {
    let state = orchestrator.state.borrow();
    let door = state.doors.get(&process)?;
    Some((door.function.clone(), door.handed.clone()))
}

/// A request that was taken just now. Its body is among the container's from here on: what a process does not read of it is
/// nobody else's.
async fn invocation(
    orchestrator: &Rc<Orchestrator>,
    function: &str,
    taken: Taken,
    bodies: Arc<Room>,
) -> Reply {
    let body = {
        let mut state = orchestrator.state.borrow_mut();
        let pending = state.pending.get_mut(&taken.request);
        pending.and_then(|pending| {
            pending.taken = Some(Instant::now());
            pending.body.take()
        })
    };
    let Some(Whole { bytes, room, .. }) = body else { return gone() };
    let Some(body) = http::hand_on(bytes, Some(room), bodies).await else {
        // Its caller's other requests would wait for as long.
        let why = format!(
            "its container kept what it has of other bodies for {} s, so that there was no room for its own",
            WRITE_MAX.as_secs()
        );
        orchestrator.with(|schedule, now| schedule.has_no_room(now, taken.request, &why));
        return gone();
    };
    if !orchestrator.state.borrow().pending.contains_key(&taken.request) {
        // Its time was over before there was room for it.
        return gone();
    }
    let mut reply = http::with_type(StatusCode::OK, JSON, body);
    let left = taken.deadline.saturating_sub(orchestrator.begun.elapsed());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let owner = &orchestrator.config.functions[function].owner;
    let request = taken.request.0;
    for (name, value) in [
        ("lambda-runtime-aws-request-id", id_of(taken.request)),
        ("lambda-runtime-deadline-ms", (now + left).as_millis().to_string()),
        (
            "lambda-runtime-invoked-function-arn",
            format!("arn:elver:lambda:{REGION}:{owner}:function:{function}"),
        ),
        (
            "lambda-runtime-trace-id",
            format!("Root=1-{:08x}-{request:024x};Sampled=0", now.as_secs()),
        ),
        ("elver-start", taken.start.to_string()),
    ] {
        let value = HeaderValue::from_str(&value).expect("names have letters, digits, - and _");
        reply.headers_mut().insert(name, value);
    }
    reply
}

/// A process is about to answer a request, or is refused: it answers those that it has taken, and each once, since it could
/// have any number of bodies for one else.
fn begin(orchestrator: &Orchestrator, process: ProcessId, id: RequestId) -> Option<Reply> {
    let mut state = orchestrator.state.borrow_mut();
    if !state.schedule.has_taken(process, id) {
        return Some(not_taken(id));
    }
    let Some(pending) = state.pending.get_mut(&id) else { return Some(not_taken(id)) };
    if std::mem::replace(&mut pending.is_being_answered, true) {
        let what = format!("request {} has an answer that is still coming", id_of(id));
        return Some(http::failure(StatusCode::FORBIDDEN, "InvalidStateTransition", &what));
    }
    None
}

async fn finish(
    orchestrator: &Rc<Orchestrator>,
    process: ProcessId,
    request: Request<Incoming>,
    bodies: Arc<Room>,
    id: RequestId,
    is_error: bool,
) -> Reply {
    let Some((function, _)) = door(orchestrator, process) else { return gone() };
    // A response may be streamed for as long as its request may take; then its process is killed.
    let time = Duration::from_secs(orchestrator.config.functions[&function].timeout_s);
    let (head, mut body) = request.into_parts();
    let said = match http::body(&mut body, bodies, RESPONSE_MAX, time).await {
        Ok(body) => said(&head.headers, body, is_error),
        Err(NoBody::TooLarge(refusal)) => {
            let ended =
                orchestrator.with(|schedule, now| schedule.answered_ahead(now, process, id));
            if !tell(orchestrator, id, ended, too_large()) {
                return http::closing(not_taken(id));
            }
            // Who is still about to write it would not hear the refusal else, and Lambda's programs go on after it.
            let is_read = http::discard(&mut body, DISCARDED_MAX, time).await;
            if !is_read {
                orchestrator.with(|schedule, now| schedule.cut(now, process, id));
                return http::closing(*refusal);
            }
            orchestrator.with(|schedule, now| schedule.sent(now, process, id));
            return *refusal;
        }
        Err(NoBody::Missing(refusal, why)) => {
            cut(orchestrator, process, id, &why);
            return http::closing(*refusal);
        }
    };
    match settle(orchestrator, process, id, said) {
        true => http::json(StatusCode::ACCEPTED, &serde_json::json!({"status": "OK"})),
        false => not_taken(id),
    }
}

/// A response does not come whole. Its request fails for that, unless it was answered.
fn cut(orchestrator: &Rc<Orchestrator>, process: ProcessId, id: RequestId, why: &str) {
    let ended = orchestrator.with(|schedule, now| schedule.cut(now, process, id));
    tell(orchestrator, id, ended, truncated(why));
}

/// Answers a request. Whether the process has it: it may have been ended meanwhile, or answered.
fn settle(orchestrator: &Rc<Orchestrator>, process: ProcessId, id: RequestId, said: Said) -> bool {
    let ended = orchestrator.with(|schedule, now| schedule.answered(now, process, id));
    tell(orchestrator, id, ended, said)
}

/// Tells the caller of a request that has ended, by how it was started; whether it has.
fn tell(orchestrator: &Orchestrator, id: RequestId, ended: Option<Start>, said: Said) -> bool {
    let Some(start) = ended else { return false };
    if let Some(pending) = orchestrator.state.borrow_mut().pending.remove(&id) {
        let taken = pending.taken.unwrap_or(pending.arrived);
        let Said { body, content_type, is_error, room } = said;
        let answer = Answer {
            is_error,
            body,
            content_type,
            start,
            launch: taken - pending.arrived,
            total: pending.arrived.elapsed(),
            room,
        };
        // A caller that has gone needs no answer.
        let _ = pending.reply.send(Ok(answer));
    }
    true
}

fn not_taken(id: RequestId) -> Reply {
    let what = format!("request {} is none that this process has taken, or was ended", id_of(id));
    http::failure(StatusCode::FORBIDDEN, "InvalidRequestID", &what)
}

/// Whether a process has answered its first request: what it, or a child of it, says of a failed start then is of none.
fn has_started(orchestrator: &Orchestrator, process: ProcessId) -> bool {
    let state = orchestrator.state.borrow();
    state.doors.contains_key(&process) && !state.schedule.is_starting(process)
}

/// A runtime could not import its handler, or the like: it is ended, and its request fails for that.
async fn start_failed(
    orchestrator: &Rc<Orchestrator>,
    process: ProcessId,
    request: Request<Incoming>,
    bodies: Arc<Room>,
) -> Reply {
    if has_started(orchestrator, process) {
        let what = "the process has started, and answered a request; one that fails ends with its answer, or without one";
        let refusal = http::failure(StatusCode::FORBIDDEN, "InvalidStateTransition", what);
        return http::unread(request, refusal).await;
    }
    let said = http::reason(request, bodies, REASON_MAX).await;
    end_unstarted(orchestrator, process, &said);
    http::json(StatusCode::ACCEPTED, &serde_json::json!({"status": "OK"}))
}

fn end_unstarted(orchestrator: &Rc<Orchestrator>, process: ProcessId, why: &str) {
    let mut state = orchestrator.state.borrow_mut();
    if let Some(door) = state.doors.get_mut(&process) {
        door.start_failed = Some(format!("its start failed: {why}"));
    }
    if let Some(container) = state.schedule.container_of(process) {
        orchestrator.order(&state, container, Order::KillProcess { process });
    }
}

/// A request's number in the form of the ids that Lambda has.
fn id_of(request: RequestId) -> String {
    format!("00000000-0000-4000-8000-{:012x}", request.0)
}

fn parse_id(id: &str) -> Option<RequestId> {
    let number = id.strip_prefix("00000000-0000-4000-8000-")?;
    u64::from_str_radix(number, 16).ok().map(RequestId)
}

async fn unknown(request: Request<Incoming>) -> Reply {
    let what = format!("the Runtime API has no {}", request.uri().path());
    http::unread(request, http::failure(StatusCode::NOT_FOUND, "NotFound", &what)).await
}

fn gone() -> Reply {
    http::failure(StatusCode::GONE, "Gone", "the request is no more; end")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later one may know more, and say so in one line or in several.
    #[test]
    fn what_a_program_heeds_is_a_list() {
        for (lists, knows) in [
            (&[][..], false),
            (&["connections"], true),
            (&["other, connections ,more"], true),
            (&["other", "connections"], true),
            (&["other,connection", "no connections"], false),
        ] {
            let mut headers = HeaderMap::new();
            for list in lists {
                headers.append(HEEDS, HeaderValue::from_static(list));
            }
            assert_eq!(heeds(&headers, "connections"), knows, "{lists:?}");
        }
    }
}
