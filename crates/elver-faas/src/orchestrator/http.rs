//! HTTP over Unix sockets, as both doors of the orchestrator speak it.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};

/// The largest request or response of a function, in bytes: Lambda's own limit.
pub(super) const BODY_MAX: usize = 6 << 20;

/// How long a peer may take to send a request's head once it has begun.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// How long a peer may take to send a body.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Most connections at once at one door.
pub(super) const CONNECTIONS_MAX: usize = 1024;

/// What a request is answered with.
pub(super) type Reply = Response<Full<Bytes>>;

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

/// Answers the requests of one connection until it ends.
pub(super) async fn converse<S, F>(stream: UnixStream, answer: S)
where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let service = service_fn(|request| {
        let reply = answer(request);
        async { Ok::<_, Infallible>(reply.await) }
    });
    // An error here is of the peer's connection, which ends with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A request's body, or what to answer instead.
pub(super) async fn body(request: Request<Incoming>) -> Result<Bytes, Box<Reply>> {
    let limited = Limited::new(request.into_body(), BODY_MAX);
    let Ok(collected) = tokio::time::timeout(BODY_TIME_MAX, limited.collect()).await else {
        return Err(Box::new(failure(
            StatusCode::REQUEST_TIMEOUT,
            "Timeout",
            "the body did not come",
        )));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let what = format!("a body has at most {BODY_MAX} bytes; hand more on by other means");
            Err(Box::new(failure(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &what)))
        }
        Err(error) => {
            Err(Box::new(failure(StatusCode::BAD_REQUEST, "BadBody", &error.to_string())))
        }
    }
}

/// A body of JSON.
pub(super) fn json(status: StatusCode, body: &impl serde::Serialize) -> Reply {
    let body = serde_json::to_vec(body).expect("our own values have a form in JSON");
    with_type(status, "application/json", body.into())
}

/// A body of some type, which a function may have chosen.
pub(super) fn with_type(status: StatusCode, content_type: &str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    let content_type = header::HeaderValue::from_str(content_type)
        .unwrap_or(header::HeaderValue::from_static("application/octet-stream"));
    reply.headers_mut().insert(header::CONTENT_TYPE, content_type);
    reply
}

/// An error in the form that Lambda has for it.
pub(super) fn failure(status: StatusCode, kind: &str, what: &str) -> Reply {
    json(status, &serde_json::json!({"errorType": kind, "errorMessage": what}))
}
