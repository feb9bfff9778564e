//! An action's container under OpenWhisk: `/init` and `/run` on port 8080 (its `docs/actions-new.md`).
//!
//! `/init` brings the code, once, and starts it as a process that speaks ActionLoop: a line of JSON a
//! request on standard input, the answer as a line on descriptor 3. Python is run by a launcher of ours,
//! an INIT process, which forks for each `/run`. Whatever else is executable is run as it is.
//!
//! | status | of `/init` | of `/run` |
//! | --- | --- | --- |
//! | 200 | `{"ok":true}` | what the action answered |
//! | 400 | it is no JSON, or no base64 | it is no JSON; the action's process died |
//! | 403 | it brings no code; it is the second | |
//! | 413 | more than 64 MB | more than 6 MB |
//! | 500 | | no action is there |
//! | 502 | the action did not start | the answer is neither object nor array, or too long; the one before had more than a line |
//! | 503 | the container is being ended; all of 64 connections have requests; another large one took 30 s | the first two |
//!
//! A new connection has the place of one that is idle, which comes to the end of what it is at. Of `/init`s of more than 1 MB one comes at a time, for which another one waits
//! 30 s at most; and what comes when the action is there, or its turn when it is there, is refused before its body. Who sends more
//! than 4 MB of such a body may find the connection reset in place of the answer.
//!
//! After each `/run`, and a start that failed, [`SENTINEL`] stands on standard output and standard error.

mod code;
mod connections;
mod group;
mod launcher;

use std::cell::Cell;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::{Body, Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{LocalSet, spawn_local};

use crate::accepting;
use crate::http::{self, BODY_TIME_MAX, HeadTime, Heads, NoBody, Reply};
use crate::progress::WRITE_MAX;
use code::Code;
use connections::Connections;
use group::Started;
use launcher::{Launcher, NoAnswer};

/// Where an action's container listens.
pub const PORT: u16 = 8080;

/// What ends the log of an activation.
pub const SENTINEL: &str = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";

/// The largest `/init`: OpenWhisk's limit of code is 48 MB, in base64.
const INIT_MAX: usize = 66 << 20;

/// The largest `/init` of which there may be any number at once, in bytes; of larger ones, one comes at a time.
const SMALL_MAX: usize = 1 << 20;

/// The largest body of a request that is refused which is read to its end, in bytes.
const REFUSED_MAX: usize = 4 << 20;

/// The largest `/run`; OpenWhisk's own limit of parameters is 1 MB.
const RUN_MAX: usize = 6 << 20;

/// How long an action may run of which nobody says how long: OpenWhisk's most.
const RUN_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// How much longer than that a launcher may take, which itself ends a handler that is late.
const GRACE: Duration = Duration::from_secs(1);

/// OpenWhisk keeps its connection from one activation to the next.
const HEADS: Heads =
    Heads { bytes: 16 << 10, time: Some(HeadTime::Begun(Duration::from_secs(10))) };

/// Most connections at once; OpenWhisk makes one.
const CONNECTIONS_MAX: usize = 64;

/// What another one is told while all have requests.
const BUSY: &str =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// How long what runs has when all is to end, and who reads its answer.
const END_MAX: Duration = RUN_TIME_MAX.saturating_add(WRITE_MAX);

/// Serves until SIGINT or SIGTERM. What runs then has its answer; what comes then is refused. It ends at another one, and however slow
/// who reads his answer is.
///
/// # Errors
/// What the system says of the address.
pub fn serve(address: SocketAddr) -> io::Result<()> {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&executor, async {
        let listener = TcpListener::bind(address).await?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let door = Rc::new(Door {
            is_initialized: Cell::new(false),
            proxy: Mutex::new(Proxy { launcher: None, started: Started::look_after()? }),
            connections: Connections::new(CONNECTIONS_MAX),
            large: Arc::new(Semaphore::new(1)),
            ending: watch::Sender::new(false),
        });
        let accepting = spawn_local(accept(listener, door.clone()));
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        door.ending.send_replace(true);
        tokio::select! {
            () = door.connections.all_gone() => {}
            () = tokio::time::sleep(END_MAX) => {}
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        accepting.abort();
        // Where somebody is at work with it, it ends with him.
        if let Ok(mut proxy) = door.proxy.try_lock() {
            proxy.launcher = None;
        }
        Ok(())
    })
}

/// What connections share.
struct Door {
    is_initialized: Cell<bool>,
    proxy: Mutex<Proxy>,
    connections: Rc<Connections>,
    /// Of whoever has a large body of an `/init`.
    large: Arc<Semaphore>,
    ending: watch::Sender<bool>,
}

impl Door {
    /// Why nothing is done, if so.
    fn refusal(&self, is_init: bool) -> Option<NoBody> {
        let refusal = |status, kind, what: &str| NoBody { status, kind, what: what.into() };
        if *self.ending.borrow() {
            let what = "the container is being ended";
            return Some(refusal(StatusCode::SERVICE_UNAVAILABLE, "Ending", what));
        }
        (is_init && self.is_initialized.get()).then(|| {
            let what = "Cannot initialize the action more than once.";
            eprintln!("{what}");
            refusal(StatusCode::FORBIDDEN, "Initialized", what)
        })
    }
}

async fn accept(listener: TcpListener, door: Rc<Door>) {
    loop {
        let (stream, _) = accepting::next(|cx| listener.poll_accept(cx)).await;
        let mut ending = door.ending.subscribe();
        let is_ending = *ending.borrow();
        // One that comes while the container is being ended is told so.
        let connection = if is_ending { None } else { door.connections.connected() };
        if connection.is_none() && !is_ending {
            // One that has not asked yet cannot be told more than fits at once.
            let _ = stream.try_write(BUSY.as_bytes());
            continue;
        }
        // A socket that cannot be told so is slower.
        let _ = stream.set_nodelay(true);
        let door = door.clone();
        spawn_local(async move {
            let Some(connection) = connection else {
                let answer = |request| answer(door.clone(), request);
                return http::converse(stream, HEADS, answer, std::future::pending()).await;
            };
            let ended = async {
                tokio::select! {
                    // Its sender is there as long as this.
                    _ = ending.wait_for(|ending| *ending) => {}
                    () = connection.told_to_leave() => {}
                }
            };
            let answer = |request| connection.at_work(answer(door.clone(), request));
            let is_writing = connection.is_writing();
            tokio::select! {
                () = http::converse_noting(stream, HEADS, is_writing, answer, ended) => {}
                () = connection.cut() => {}
            }
        });
    }
}

async fn answer(door: Rc<Door>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_string();
    let (is_init, most) = match (request.method(), path.as_str()) {
        (&Method::POST, "/init") => (true, INIT_MAX),
        (&Method::POST, "/run") => (false, RUN_MAX),
        (_, "/init" | "/run") => {
            return failure(StatusCode::METHOD_NOT_ALLOWED, &format!("{path} is asked by POST"));
        }
        _ => return failure(StatusCode::NOT_FOUND, &format!("an action has no {path}")),
    };
    let mut body = request.into_body();
    if let Some(refusal) = door.refusal(is_init) {
        return refused(body, &refusal).await;
    }
    let mut turn = None;
    let room = async |length| {
        if is_init && length > SMALL_MAX && turn.is_none() {
            let its = its_turn(&door.large).await?;
            // What it waited for may have changed it.
            if let Some(refusal) = door.refusal(is_init) {
                return Err(refusal);
            }
            turn = Some(its);
        }
        Ok(())
    };
    let body = match http::body(&mut body, most, BODY_TIME_MAX, room).await {
        Ok((body, _)) => body,
        Err(late) if late.status == StatusCode::REQUEST_TIMEOUT => {
            return failure(late.status, &late.what);
        }
        Err(error) => {
            drop(turn);
            return refused(body, &error).await;
        }
    };
    // What has begun is done, also if its caller goes: the next answer is the next request's.
    let done = spawn_local(async move {
        let _turn = turn;
        let mut proxy = door.proxy.lock().await;
        // What it waited for may have changed it.
        if let Some(refusal) = door.refusal(is_init) {
            return failure(refusal.status, &refusal.what);
        }
        if !is_init {
            return proxy.run(&body).await;
        }
        let reply = proxy.init(&body).await;
        door.is_initialized.set(reply.status() == StatusCode::OK);
        reply
    });
    done.await.unwrap_or_else(|error| {
        failure(StatusCode::INTERNAL_SERVER_ERROR, &format!("it was not done: {error}"))
    })
}

/// The turn of a large body, for which it waits no longer than one may take to come.
async fn its_turn(large: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, NoBody> {
    let turn = tokio::time::timeout(BODY_TIME_MAX, large.clone().acquire_owned()).await;
    turn.ok().and_then(Result::ok).ok_or_else(|| NoBody {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "Busy",
        what: format!("another large /init took more than {} s", BODY_TIME_MAX.as_secs()),
    })
}

/// The answer to a request whose body is not kept. Who is still about to write one that is not too long hears it then.
async fn refused(mut body: Incoming, why: &NoBody) -> Reply {
    let reply = failure(why.status, &why.what);
    let may_end = body.size_hint().upper().is_none_or(|length| length <= REFUSED_MAX as u64);
    match may_end && http::discard(&mut body, REFUSED_MAX, BODY_TIME_MAX).await {
        true => reply,
        false => http::closing(reply),
    }
}

/// The container's one action.
#[derive(Debug)]
struct Proxy {
    launcher: Option<Launcher>,
    started: Started,
}

impl Proxy {
    async fn init(&mut self, body: &[u8]) -> Reply {
        let code = match Code::parse(body) {
            Ok(code) => code,
            Err((status, what)) => return failure(status, &what),
        };
        let started = match code.unpack() {
            Ok(action) => Launcher::start(&action, &code, &self.started).await,
            Err(error) => Err(error),
        };
        match started {
            Ok(launcher) => {
                self.launcher = Some(launcher);
                http::json(StatusCode::OK, &json!({"ok": true}))
            }
            Err(error) => {
                mark();
                failure(StatusCode::BAD_GATEWAY, &format!("cannot start action: {error}"))
            }
        }
    }

    async fn run(&mut self, body: &[u8]) -> Reply {
        let Some(request) = Activation::parse(body) else {
            return failure(StatusCode::BAD_REQUEST, "Error unmarshaling request: it is no object");
        };
        let Some(launcher) = &mut self.launcher else {
            return failure(StatusCode::INTERNAL_SERVER_ERROR, "no action defined yet");
        };
        let most = request.time_left().unwrap_or(RUN_TIME_MAX) + GRACE;
        let answered = launcher.interact(body, most).await;
        mark();
        match answered {
            Ok(answer) if is_answer(&answer) => {
                http::with_type(StatusCode::OK, "application/json", Bytes::from(answer))
            }
            Ok(_) => {
                failure(StatusCode::BAD_GATEWAY, "The action did not return a dictionary or array.")
            }
            Err(why) => {
                self.launcher = None;
                let status = match why {
                    NoAnswer::TooLong | NoAnswer::Ahead => StatusCode::BAD_GATEWAY,
                    NoAnswer::Died | NoAnswer::Late => StatusCode::BAD_REQUEST,
                };
                failure(status, &why.to_string())
            }
        }
    }
}

/// Whether it is an object or an array in JSON.
fn is_answer(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<IgnoredAny>(line).is_ok()
}

/// What is looked at of a request. The action has it as it came: read and written anew, its numbers might be others.
#[derive(Debug, Deserialize)]
struct Activation {
    #[serde(default)]
    deadline: Value,
}

impl Activation {
    /// `None` of what is no object in JSON.
    fn parse(body: &[u8]) -> Option<Activation> {
        let text = std::str::from_utf8(body).ok()?;
        // An array of one would be taken for a structure.
        let is_object = text.trim_start().starts_with('{');
        is_object.then(|| serde_json::from_str(text).ok()).flatten()
    }

    /// How long until the deadline that it names, in milliseconds of the epoch.
    fn time_left(&self) -> Option<Duration> {
        let deadline = match &self.deadline {
            Value::String(text) => text.parse().ok()?,
            Value::Number(number) => number.as_u64()?,
            _ => return None,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(Duration::from_millis(deadline).saturating_sub(now).min(RUN_TIME_MAX))
    }
}

/// Ends the activation's log. Nobody may listen to it.
fn mark() {
    let _ = writeln!(io::stdout(), "{SENTINEL}");
    let _ = writeln!(io::stderr(), "{SENTINEL}");
}

fn failure(status: StatusCode, what: &str) -> Reply {
    http::json(status, &json!({"error": what}))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It waited for as long as others took, one after the other.
    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_as_long_as_a_body() {
        let large = Arc::new(Semaphore::new(1));
        let first = its_turn(&large).await.unwrap();
        let waited = tokio::time::timeout(BODY_TIME_MAX * 2, its_turn(&large)).await;
        let refused = waited.expect("it ends").unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        drop(its_turn(&large).await.unwrap());
    }
}
