//! The Lambda Runtime API over the platform's Unix socket, as one request needs it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::error::{Error, system};

/// The socket's place.
const SOCKET: &str = "ELVER_API_SOCKET";

/// Tells the platform that this library heeds `ELVER_CONNECTIONS`.
const HEEDS: &str = "Elver-Heeds: connections\r\n";

const BASE: &str = "/2018-06-01/runtime/invocation";

/// The largest head and body that an answer has, in bytes.
const HEAD_MAX: usize = 16 << 10;
const BODY_MAX: usize = 6 << 20;

/// Most headers of an answer.
const HEADERS_MAX: usize = 32;

/// A request that this process has taken.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// Its number, as the API has it.
    pub(crate) id: String,
    /// The event, in JSON.
    pub(crate) event: Vec<u8>,
    /// How it was started.
    pub(crate) start: String,
    /// When it is killed.
    pub(crate) deadline: SystemTime,
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> Result<&str, Error> {
        let found = self.headers.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
        let lacks = || Error::Conversation(format!("an invocation without {name}"));
        found.map(|(_, value)| value.as_str()).ok_or_else(lacks)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Api {
    path: PathBuf,
    stream: UnixStream,
}

impl Api {
    pub(crate) fn connect() -> Result<Api, Error> {
        Api::at(std::env::var_os(SOCKET).ok_or(Error::NoPlatform(SOCKET))?.into())
    }

    fn at(path: PathBuf) -> Result<Api, Error> {
        let stream = UnixStream::connect(&path).map_err(system("connecting to the Runtime API"))?;
        Ok(Api { path, stream })
    }

    /// Takes the request of this number.
    pub(crate) fn next(&mut self, request: u64) -> Result<Invocation, Error> {
        let wanted = format!("Elver-Request: {request}\r\n{HEEDS}");
        let reply = self.ask("GET", "/next", &wanted, &[])?;
        if reply.status != 200 {
            let said = String::from_utf8_lossy(&reply.body).into_owned();
            return Err(Error::Conversation(format!("no invocation: {}, {said}", reply.status)));
        }
        let deadline = reply.header("Lambda-Runtime-Deadline-Ms")?;
        let deadline = deadline.parse().map(Duration::from_millis);
        let deadline =
            deadline.map_err(|error| Error::Conversation(format!("deadline: {error}")))?;
        Ok(Invocation {
            id: reply.header("Lambda-Runtime-Aws-Request-Id")?.into(),
            start: reply.header("Elver-Start")?.into(),
            deadline: UNIX_EPOCH + deadline,
            event: reply.body,
        })
    }

    pub(crate) fn respond(&mut self, id: &str, answer: &[u8]) -> Result<(), Error> {
        if answer.len() > BODY_MAX {
            let what =
                format!("an answer has at most {BODY_MAX} bytes; this one has {}", answer.len());
            return self.fail(id, "TooLarge", &what);
        }
        self.tell(&format!("/{id}/response"), answer)
    }

    pub(crate) fn fail(&mut self, id: &str, kind: &str, what: &str) -> Result<(), Error> {
        let error = json!({"errorType": kind, "errorMessage": what});
        self.tell(&format!("/{id}/error"), error.to_string().as_bytes())
    }

    fn tell(&mut self, path: &str, body: &[u8]) -> Result<(), Error> {
        const HEADER: &str = "Content-Type: application/json\r\n";
        let reply = match self.ask("POST", path, HEADER, body) {
            // The connection was lost while the handler ran.
            Err(_) => {
                *self = Api::at(self.path.clone())?;
                self.ask("POST", path, HEADER, body)
            }
            reply => reply,
        };
        match reply?.status {
            202 => Ok(()),
            status => Err(Error::Conversation(format!("an answer was not taken: {status}"))),
        }
    }

    fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<Reply, Error> {
        let length = body.len();
        let head = format!(
            "{method} {BASE}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        let asking = system("asking the Runtime API");
        self.stream.write_all(&[head.as_bytes(), body].concat()).map_err(&asking)?;
        let mut read = Vec::new();
        loop {
            if let Some((mut reply, length)) = parse(&read)? {
                let have = reply.body.len();
                reply.body.resize(length, 0);
                self.stream.read_exact(&mut reply.body[have..]).map_err(asking)?;
                return Ok(reply);
            }
            let mut part = [0; 4096];
            let more = self.stream.read(&mut part).map_err(&asking)?;
            if more == 0 || read.len() > HEAD_MAX {
                let what = format!("its answer ends, or is none, after {} bytes", read.len());
                return Err(Error::Conversation(what));
            }
            read.extend_from_slice(&part[..more]);
        }
    }
}

/// An answer whose head is whole, with what there is of its body, and how long that is to be.
fn parse(read: &[u8]) -> Result<Option<(Reply, usize)>, Error> {
    let broken = |what: &dyn std::fmt::Display| Error::Conversation(format!("its answer: {what}"));
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(read).map_err(|error| broken(&error))?;
    let (httparse::Status::Complete(head), Some(status)) = (parsed, response.code) else {
        return Ok(None);
    };
    let text = |header: &httparse::Header<'_>| {
        (header.name.to_string(), String::from_utf8_lossy(header.value).into_owned())
    };
    let headers = response.headers.iter().map(text).collect();
    let reply = Reply { status, headers, body: read[head..].to_vec() };
    let length =
        reply.header("Content-Length")?.parse::<usize>().map_err(|error| broken(&error))?;
    if length > BODY_MAX || length < reply.body.len() {
        return Err(broken(&format!("a body of {length} bytes")));
    }
    Ok(Some((reply, length)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Reads a request's head, and body where one is expected.
    fn heard(stream: &mut UnixStream, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            read.push(byte[0]);
        }
        String::from_utf8(read).unwrap()
    }

    #[test]
    fn an_answer_comes_over_a_new_connection_if_the_first_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let platform = std::thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            assert!(heard(&mut first, "\r\n\r\n").contains("Elver-Request: 7"));
            const INVOCATION: &[u8] = b"HTTP/1.1 200 OK\r\nLambda-Runtime-Deadline-Ms: 1\r\nLambda-Runtime-Aws-Request-Id: seven\r\nElver-Start: fork\r\nContent-Length: 2\r\n\r\n{}";
            first.write_all(INVOCATION).unwrap();
            drop(first);
            let (mut second, _) = listener.accept().unwrap();
            let answer = heard(&mut second, "done");
            second.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").unwrap();
            answer
        });
        let mut api = Api::at(path).unwrap();
        let invocation = api.next(7).unwrap();
        api.respond(&invocation.id, b"done").unwrap();
        assert!(platform.join().unwrap().starts_with("POST /2018-06-01/runtime/invocation/seven/"));
    }
}
