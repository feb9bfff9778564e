//! The front door: HTTP over a Unix socket, where callers invoke functions. The system says who asks.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet, spawn_local};

use super::core::{Answer, Orchestrator, Pending};
use super::http::{self, CONNECTIONS_MAX, Reply};
use crate::client::{ERROR_HEADER, LAUNCH_HEADER, Listing, START_HEADER, TOTAL_HEADER};
use crate::schedule::Failure;

/// Listens; all of the host's users may ask, and each is told what he may have.
pub(super) fn listen(orchestrator: Rc<Orchestrator>, path: &Path) -> io::Result<JoinHandle<()>> {
    let listener = http::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(spawn_local(serve(orchestrator, listener)))
}

async fn serve(orchestrator: Rc<Orchestrator>, listener: UnixListener) {
    let room = std::sync::Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        let Ok(caller) = stream.peer_cred().map(|cred| cred.uid()) else { continue };
        let orchestrator = orchestrator.clone();
        connections.spawn_local(async move {
            let answer = |request| answer(orchestrator.clone(), caller, request);
            http::converse(stream, answer, std::future::pending()).await;
            drop(permit);
        });
    }
}

async fn answer(orchestrator: Rc<Orchestrator>, caller: u32, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_string();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match (request.method(), &parts[..]) {
        (&Method::GET, ["functions"]) => list(&orchestrator, caller),
        (&Method::POST, ["functions", name, "invocations"]) => {
            invoke(&orchestrator, caller, name, request).await
        }
        _ => http::failure(StatusCode::NOT_FOUND, "NotFound", &format!("there is no {path}")),
    }
}

async fn invoke(
    orchestrator: &Rc<Orchestrator>,
    caller: u32,
    name: &str,
    request: Request<Incoming>,
) -> Reply {
    let arrived = Instant::now();
    // Who may not invoke a function does not learn whether it is there.
    if !may_invoke(orchestrator, caller, name) {
        return refused(&Failure::Unknown(name.into()));
    }
    let body = match http::body(request).await {
        Ok(body) => body,
        Err(reply) => return *reply,
    };
    let (reply, answered) = oneshot::channel();
    let placed = orchestrator.with(|schedule, now| schedule.request(now, name));
    let id = match placed {
        Ok(id) => id,
        Err(failure) => return refused(&failure),
    };
    // Nothing else has run since, so that nobody can have taken it yet.
    let pending = Pending { body, reply, arrived, taken: None };
    orchestrator.state.borrow_mut().pending.insert(id, pending);
    match answered.await {
        Ok(Ok(answer)) => result(answer),
        Ok(Err(failure)) => refused(&failure),
        Err(_) => http::failure(StatusCode::SERVICE_UNAVAILABLE, "Ended", "the orchestrator ends"),
    }
}

/// Root, the orchestrator's own user, the function's owner, and whom its owner named.
fn may_invoke(orchestrator: &Orchestrator, caller: u32, name: &str) -> bool {
    let Some(function) = orchestrator.config.functions.get(name) else { return false };
    let owner = orchestrator.config.owner_of(function);
    let own = rustix::process::geteuid().as_raw();
    [0, own, owner.uid].contains(&caller) || owner.callers.contains(&caller)
}

fn list(orchestrator: &Orchestrator, caller: u32) -> Reply {
    let table = orchestrator.state.borrow().schedule.table();
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
    };
    http::json(StatusCode::OK, &listing)
}

fn result(answer: Answer) -> Reply {
    let mut reply = http::with_type(StatusCode::OK, &answer.content_type, answer.body);
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
