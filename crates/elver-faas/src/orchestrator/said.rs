//! What processes say of their requests, as Lambda's clients say it, and what is said in place of that.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};

use super::http::Whole;
use super::room::{Part, RESPONSE_MAX};

/// The type of what has none.
pub(super) const JSON: &str = "application/json";

/// The message of an error of which its process says the type alone.
const NOTHING_SAID: &str = "the function ended with an error";

/// What a process says of a request that it has taken.
pub(super) struct Said {
    pub(super) body: Bytes,
    pub(super) content_type: String,
    pub(super) is_error: bool,
    pub(super) room: Option<Part>,
}

pub(super) fn said(headers: &HeaderMap, body: Whole, is_error: bool) -> Said {
    let Whole { bytes, trailers, room } = body;
    let failed = match trailers.as_ref().and_then(failure_of) {
        None if is_error && bytes.is_empty() => {
            failure_of(headers).or_else(|| Some(error("Unknown", NOTHING_SAID)))
        }
        failed => failed,
    };
    let content_type = match failed {
        Some(_) => JSON.into(),
        None => content_type(headers),
    };
    Said {
        is_error: is_error || failed.is_some(),
        body: failed.unwrap_or(bytes),
        content_type,
        room: Some(room),
    }
}

/// The error in place of a response that does not come whole, by the name that it has at Lambda.
pub(super) fn truncated(why: &str) -> Said {
    instead("Runtime.TruncatedResponse", &format!("The response did not come whole: {why}."))
}

/// The error in place of a response that has too many bytes, by the name that it has at Lambda.
pub(super) fn too_large() -> Said {
    let what = format!(
        "Response payload size exceeded maximum allowed payload size ({} bytes).",
        RESPONSE_MAX
    );
    instead("Function.ResponseSizeTooLarge", &what)
}

fn instead(kind: &str, what: &str) -> Said {
    Said { body: error(kind, what), content_type: JSON.into(), is_error: true, room: None }
}

/// The error that headers name: those behind a response that was streamed, of which what came before is of no use, or those
/// of an error without a body.
fn failure_of(headers: &HeaderMap) -> Option<Bytes> {
    let kind = headers.get("lambda-runtime-function-error-type")?.to_str().unwrap_or("Unknown");
    let body = headers.get("lambda-runtime-function-error-body");
    let body = body.and_then(|body| STANDARD.decode(body.as_bytes()).ok());
    Some(body.map_or_else(|| error(kind, NOTHING_SAID), Bytes::from))
}

/// An error in Lambda's form.
fn error(kind: &str, what: &str) -> Bytes {
    serde_json::json!({"errorType": kind, "errorMessage": what}).to_string().into()
}

fn content_type(headers: &HeaderMap) -> String {
    let named = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    named.unwrap_or(JSON).to_string()
}
