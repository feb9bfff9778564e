//! HTTP/1.1 (RFC 9112) as far as one GET after another needs it: a server of one file, and its client. A message of
//! a ring is a whole request, or a whole response.

use std::fmt::Write as _;

/// Bytes of a head, at most.
pub const HEAD_MAX: usize = 512;
const HEADERS_MAX: usize = 16;

/// Why bytes are no request or no response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// They are no HTTP.
    #[error("no HTTP/1.1: {0}")]
    Malformed(#[from] httparse::Error),
    /// A whole message was looked for.
    #[error("{0} bytes are no whole message: its head or its body does not end in them")]
    Partial(usize),
    /// The server did not do as it was asked.
    #[error("the server answers {0}")]
    Status(u16),
    /// A response of the length that this says was looked for.
    #[error("the response has no Content-Length, or one that is no number")]
    Length,
}

/// The request for a file.
pub fn get(path: &str, host: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: elver-cases\r\nAccept: */*\r\n\r\n")
        .into_bytes()
}

/// A server that has one file.
#[derive(Debug)]
pub struct Server {
    path: String,
    file: Vec<u8>,
    head: String,
}

/// A response in two pieces that are sent one behind the other.
#[derive(Debug)]
pub struct Response<'a> {
    /// The status line and the headers.
    pub head: &'a [u8],
    /// The file, or nothing.
    pub body: &'a [u8],
}

const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
const NOT_ALLOWED: &[u8] =
    b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0\r\n\r\n";

impl Server {
    /// One that has this file at `path`.
    pub fn new(path: &str, file: Vec<u8>) -> Server {
        let head = String::with_capacity(HEAD_MAX);
        Server { path: path.into(), file, head }
    }

    /// What a request is answered with, whatever it is.
    pub fn answer(&mut self, request: &[u8]) -> Response<'_> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let refused = match parsed.parse(request) {
            Ok(httparse::Status::Complete(len)) if len == request.len() => match parsed.method {
                Some("GET") if parsed.path == Some(self.path.as_str()) => None,
                Some("GET") => Some(NOT_FOUND),
                _ => Some(NOT_ALLOWED),
            },
            _ => Some(BAD_REQUEST),
        };
        if let Some(head) = refused {
            return Response { head, body: &[] };
        }
        self.head.clear();
        // As servers do, a head for each answer. Writing to a string cannot fail.
        let _ = write!(
            self.head,
            "HTTP/1.1 200 OK\r\nServer: elver-cases\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {}\r\n\r\n",
            self.file.len()
        );
        Response { head: self.head.as_bytes(), body: &self.file }
    }
}

impl Response<'_> {
    /// Bytes of both pieces.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether there are none; no response is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The file in a whole response.
///
/// # Errors
/// It is none, or tells that the file was not to be had.
pub fn body(response: &[u8]) -> Result<&[u8], Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = parsed.parse(response)? else {
        return Err(Error::Partial(response.len()));
    };
    match parsed.code {
        Some(200) => {}
        code => return Err(Error::Status(code.unwrap_or(0))),
    }
    let mut lengths =
        parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().and_then(|header| std::str::from_utf8(header.value).ok());
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or(Error::Length)?;
    let body = &response[head..];
    if body.len() != length {
        return Err(Error::Partial(response.len()));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answered(request: &[u8]) -> Vec<u8> {
        let mut server = Server::new("/file", vec![7; 1_024]);
        let response = server.answer(request);
        assert!(!response.is_empty());
        [response.head, response.body].concat()
    }

    #[test]
    fn the_file_is_given_to_who_asks_for_it() {
        let response = answered(&get("/file", "here"));
        assert_eq!(body(&response), Ok(&[7; 1_024][..]));
    }

    #[test]
    fn what_is_no_request_for_it_is_refused() {
        assert_eq!(body(&answered(&get("/other", "here"))), Err(Error::Status(404)));
        assert_eq!(body(&answered(b"PUT /file HTTP/1.1\r\n\r\n")), Err(Error::Status(405)));
        assert_eq!(body(&answered(b"GET /file HTTP/1.1\r\n\r\n?")), Err(Error::Status(400)));
        assert_eq!(body(&answered(b"GET /file HTTP/1.1\r\n")), Err(Error::Status(400)));
    }

    #[test]
    fn half_a_response_is_none() {
        let whole = answered(&get("/file", "here"));
        for len in [0, 1, 20, whole.len() - 1_025, whole.len() - 1] {
            assert_eq!(body(&whole[..len]), Err(Error::Partial(len)));
        }
        assert_eq!(body(b"HTTP/1.1 200 OK\r\n\r\n"), Err(Error::Length));
    }

    proptest! {
        #[test]
        fn no_bytes_make_either_side_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = body(&bytes);
            prop_assert!(answered(&bytes).starts_with(b"HTTP/1.1 "));
        }
    }
}
