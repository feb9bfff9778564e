//! HTTP over Unix sockets, as both doors of the orchestrator speak it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hyper::body::{Bytes, Incoming};
use hyper::{Request, StatusCode};
use tokio::net::UnixListener;

use crate::http;
pub(super) use crate::http::{Reply, converse, json, with_type};

/// The largest request or response of a function, in bytes: Lambda's own limit.
const BODY_MAX: usize = 6 << 20;

/// Most connections at once at one door.
pub(super) const CONNECTIONS_MAX: usize = 1024;

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

/// A request's body, or what to answer instead.
pub(super) async fn body(request: Request<Incoming>) -> Result<Bytes, Box<Reply>> {
    let body = http::body(request, BODY_MAX).await;
    body.map_err(|error| Box::new(failure(error.status, error.kind, &error.what)))
}

/// An error in the form that Lambda has for it.
pub(super) fn failure(status: StatusCode, kind: &str, what: &str) -> Reply {
    json(status, &serde_json::json!({"errorType": kind, "errorMessage": what}))
}
