//! Asking an orchestrator: what `elver faas invoke` and `elver faas list` do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use crate::schedule::{ContainerId, Row, Start};

/// What a request wants to be connected to, beside its function's destinations: GIDs with spaces between them.
pub(crate) const DESTINATIONS_HEADER: &str = "elver-destinations";
/// How a request was started.
pub(crate) const START_HEADER: &str = "elver-start";
/// How long it took until its process had it, in microseconds.
pub(crate) const LAUNCH_HEADER: &str = "elver-launch-us";
/// How long it took until it was answered, in microseconds.
pub(crate) const TOTAL_HEADER: &str = "elver-total-us";
/// Whether the function answered with an error of its own.
pub(crate) const ERROR_HEADER: &str = "elver-function-error";

/// Functions that the caller may invoke, and the Orchestrator Table's rows of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// The functions' names.
    pub functions: Vec<String>,
    /// Their INIT processes.
    pub processes: Vec<Row>,
    /// The caller's own containers, or all for root, that were to be ended and are not.
    #[serde(default)]
    pub stuck: Vec<StuckContainer>,
}

/// A container that was to be ended, and that its runtime has not ended. It takes no requests, counts among those that there
/// may be, and is tried again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StuckContainer {
    /// Its number.
    pub container: ContainerId,
    /// Whose it is.
    pub owner: String,
    /// How often it was to be ended.
    pub tries: u32,
    /// What the runtime said the last time.
    pub why: String,
}

/// What a function answered.
#[derive(Clone, Debug)]
pub struct Invoked {
    /// Its result, or its error.
    pub body: Vec<u8>,
    /// Whether it is an error.
    pub is_error: bool,
    /// How it was started.
    pub start: Start,
    /// From the request's arrival until the function's process took it.
    pub launch: Duration,
    /// From the request's arrival until its answer.
    pub total: Duration,
}

/// Why there is no answer of a function.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No orchestrator listens.
    #[error("no orchestrator at {path}: {error}; start one with `elver faas serve`")]
    NotThere {
        /// Its socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It ended amid the conversation.
    #[error(
        "the orchestrator at {path} ended before it answered ({said}); the function may have run: ask again if that does no harm"
    )]
    Ended {
        /// Its socket.
        path: PathBuf,
        /// What became of the connection.
        said: String,
    },
    /// It spoke otherwise than it should.
    #[error("the orchestrator: {0}")]
    Conversation(String),
    /// It refused, or the function failed.
    #[error("{what}")]
    Refused {
        /// The kind of failure, in one word.
        kind: String,
        /// What happened.
        what: String,
    },
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "errorType")]
    kind: String,
    #[serde(rename = "errorMessage")]
    what: String,
}

/// Invokes a function with an event in JSON, and waits for its answer.
///
/// # Errors
/// [`ClientError`]; an error of the function's own is an [`Invoked`].
pub fn invoke(socket: &Path, function: &str, event: Vec<u8>) -> Result<Invoked, ClientError> {
    invoke_towards(socket, function, &[], event)
}

/// As [`invoke`], of a process that has connections to the destinations, which are GIDs, if there is one.
///
/// # Errors
/// As [`invoke`].
pub fn invoke_towards(
    socket: &Path,
    function: &str,
    destinations: &[String],
    event: Vec<u8>,
) -> Result<Invoked, ClientError> {
    let path = format!("/functions/{function}/invocations");
    let (headers, body) = ask(socket, Method::POST, &path, destinations, event)?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let time = |name: &str| Some(Duration::from_micros(header(name)?.parse().ok()?));
    let start = header(START_HEADER).map(serde_json::Value::from);
    let invoked = || {
        Some(Invoked {
            is_error: header(ERROR_HEADER)? == "true",
            start: serde_json::from_value(start?).ok()?,
            launch: time(LAUNCH_HEADER)?,
            total: time(TOTAL_HEADER)?,
            body: body.to_vec(),
        })
    };
    invoked().ok_or_else(|| ClientError::Conversation("an answer without its headers".into()))
}

/// What the caller may invoke, and what runs of it.
///
/// # Errors
/// [`ClientError`].
pub fn list(socket: &Path) -> Result<Listing, ClientError> {
    let (_, body) = ask(socket, Method::GET, "/functions", &[], Vec::new())?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Conversation(error.to_string()))
}

fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    destinations: &[String],
    body: Vec<u8>,
) -> Result<(HeaderMap, Bytes), ClientError> {
    let broken = |error: &dyn std::fmt::Display| ClientError::Conversation(error.to_string());
    let ended = |error: hyper::Error| match error.is_parse() {
        true => broken(&error),
        false => ClientError::Ended { path: socket.into(), said: error.to_string() },
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(DESTINATIONS_HEADER, destinations.join(" "))
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| broken(&error))?;
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| broken(&error))?;
    executor.block_on(async {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|error| ClientError::NotThere { path: socket.into(), error })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        let conversation = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(ended)?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(ended)?.to_bytes();
        conversation.abort();
        if head.status == StatusCode::OK {
            return Ok((head.headers, body));
        }
        let Refusal { kind, what } = serde_json::from_slice(&body)
            .map_err(|_| ClientError::Conversation(format!("it answers {}", head.status)))?;
        Err(ClientError::Refused { kind, what })
    })
}
