//! HTTP of small services: a connection's requests one after the other, bodies with a limit.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

pub(crate) use crate::heads::HeadTime;
use crate::heads::{Begun, Heard};
use crate::progress::Progress;

/// What heads of requests may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Most bytes of one.
    pub(crate) bytes: usize,
    /// How long one may take to come; without it, as long as it likes.
    pub(crate) time: Option<HeadTime>,
}

/// How long a peer may take to send a body, unless it has a time of its own.
pub(crate) const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// The largest body that is read though it is of no use, in bytes.
const IDLE_MAX: usize = 64 << 10;

/// How long a peer may take for the rest of a head that it has begun when its connection is to end.
const LAST_HEAD_MAX: Duration = Duration::from_secs(5);

/// What a request is answered with.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Why there is no body.
#[derive(Debug)]
pub(crate) struct NoBody {
    /// What to answer with.
    pub(crate) status: StatusCode,
    /// In one word.
    pub(crate) kind: &'static str,
    /// With the values.
    pub(crate) what: String,
}

/// Answers the requests of one connection until it ends. Once `ended` is over, it ends with the answer to
/// what has been asked. It ends too where no head of a request has come in its time, and with a peer that takes none of its answer for [`WRITE_MAX`](crate::progress::WRITE_MAX).
pub(crate) async fn converse<T, S, F>(
    stream: T,
    heads: Heads,
    answer: S,
    ended: impl Future<Output = ()>,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    converse_noting(stream, heads, &Cell::new(false), answer, ended).await;
}

/// The same; `is_writing` tells meanwhile whether the peer has not taken the whole of an answer yet.
pub(crate) async fn converse_noting<T, S, F>(
    stream: T,
    heads: Heads,
    is_writing: &Cell<bool>,
    answer: S,
    ended: impl Future<Output = ()>,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let begun = Begun::new(heads.time);
    let service = service_fn(|request: Request<Incoming>| {
        begun.asked(request.body().size_hint().exact());
        let (reply, begun) = (answer(request), &begun);
        async move {
            let reply = reply.await;
            Ok::<_, Infallible>(if begun.answered() { closing(reply) } else { reply })
        }
    });
    let each = match heads.time {
        Some(HeadTime::Each(most)) => Some(most),
        _ => None,
    };
    let stream = Heard { stream: Progress::new(stream, is_writing), begun: &begun };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(each)
            .max_buf_size(heads.bytes)
            .serve_connection(TokioIo::new(stream), service)
    );
    let late = async {
        begun.late().await;
        while is_writing.get() {
            begun.put_off();
            begun.late().await;
        }
    };
    // An error here is of the peer's connection, which ends with it.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = late => {}
        () = ended => {
            connection.as_mut().graceful_shutdown();
            while tokio::time::timeout(LAST_HEAD_MAX, connection.as_mut()).await.is_err() {
                if !begun.is_asked() && !is_writing.get() {
                    break;
                }
            }
        }
    }
}

/// A request's body of at most so many bytes, and what came behind it. Its peer has this time to send it; what `room` takes,
/// which is asked before so many bytes are kept and may refuse them, is not of that. It is kept in one piece: a frame may be a byte, of which what
/// keeps it apart would be many times as large.
pub(crate) async fn body<B>(
    body: &mut B,
    most: usize,
    time: Duration,
    mut room: impl AsyncFnMut(usize) -> Result<(), NoBody>,
) -> Result<(Bytes, Option<HeaderMap>), NoBody>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let mut until = Instant::now() + time;
    let (mut bytes, mut trailers) = (Vec::new(), None);
    loop {
        let Ok(frame) = timeout_at(until, body.frame()).await else {
            return Err(NoBody {
                status: StatusCode::REQUEST_TIMEOUT,
                kind: "Timeout",
                what: "the body did not come".into(),
            });
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Err(NoBody {
                    status: StatusCode::BAD_REQUEST,
                    kind: "BadBody",
                    what: error.to_string(),
                });
            }
            None => return Ok((bytes.into_boxed_slice().into(), trailers)),
        };
        match frame.into_data() {
            Ok(more) if more.len() <= most - bytes.len() => {
                let asked = Instant::now();
                room(bytes.len() + more.len()).await?;
                until += asked.elapsed();
                bytes.extend_from_slice(&more);
            }
            Ok(_) => {
                return Err(NoBody {
                    status: StatusCode::PAYLOAD_TOO_LARGE,
                    kind: "RequestEntityTooLarge",
                    what: format!("a body has at most {most} bytes; hand more on by other means"),
                });
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}

/// Reads what is left of a body, and keeps none of it. Whether it ended, within so many bytes and this time.
pub(crate) async fn discard(body: &mut Incoming, most: usize, time: Duration) -> bool {
    let mut rest = Limited::new(body, most);
    let reading = async {
        loop {
            match rest.frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return false,
                None => return true,
            }
        }
    };
    tokio::time::timeout(time, reading).await.unwrap_or(false)
}

/// The answer to a request whose body is of no use. A short one is read, since who is still about to write it would not hear
/// the answer else; behind another one the connection ends.
pub(crate) async fn unread(request: Request<Incoming>, reply: Reply) -> Reply {
    let length = request.body().size_hint().upper();
    let is_short = length.is_some_and(|length| length <= IDLE_MAX as u64);
    let mut body = request.into_body();
    match is_short && discard(&mut body, IDLE_MAX, BODY_TIME_MAX).await {
        true => reply,
        false => closing(reply),
    }
}

/// A body of JSON.
pub(crate) fn json(status: StatusCode, body: &impl serde::Serialize) -> Reply {
    let body = serde_json::to_vec(body).expect("our own values have a form in JSON");
    with_type(status, "application/json", body.into())
}

/// A body of some type, which a function may have chosen.
pub(crate) fn with_type(status: StatusCode, content_type: &str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    let content_type = header::HeaderValue::from_str(content_type)
        .unwrap_or(header::HeaderValue::from_static("application/octet-stream"));
    reply.headers_mut().insert(header::CONTENT_TYPE, content_type);
    reply
}

/// The same answer, behind which the connection ends: what has not been read of the request is not.
pub(crate) fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    reply
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use hyper::body::Frame;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Frames of a byte, each of which counts while it is there.
    struct Bits {
        left: usize,
        alive: Arc<()>,
        most_alive: usize,
    }

    struct Bit(#[expect(dead_code, reason = "it counts")] Arc<()>);

    impl AsRef<[u8]> for Bit {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Body for Bits {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.most_alive = self.most_alive.max(Arc::strong_count(&self.alive) - 1);
            let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
            self.left = left;
            let bit = Bytes::from_owner(Bit(self.alive.clone()));
            Poll::Ready(Some(Ok(Frame::data(bit))))
        }
    }

    /// Each frame was kept as it came: 50 bytes or so for one.
    #[tokio::test]
    async fn a_body_of_many_frames_takes_the_room_of_its_bytes() {
        const LENGTH: usize = 100_000;
        let mut bits = Bits { left: LENGTH, alive: Arc::new(()), most_alive: 0 };
        let (bytes, _) =
            body(&mut bits, LENGTH, Duration::from_secs(1), async |_| Ok(())).await.unwrap();
        assert_eq!((bytes.len(), bits.most_alive), (LENGTH, 0));
        bits.left = LENGTH + 1;
        let refused =
            body(&mut bits, LENGTH, Duration::from_secs(1), async |_| Ok(())).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// What becomes of a request on a connection where one was answered before, and nothing came for an hour.
    async fn after_an_hour(time: Option<HeadTime>) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(4096);
        let echo = |request: Request<Incoming>| async move {
            let path = request.uri().path().to_string();
            with_type(StatusCode::OK, "text/plain", path.into())
        };
        let conversation =
            converse(server, Heads { bytes: 8192, time }, echo, std::future::pending());
        let asking = async move {
            client.write_all(b"GET /one HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = vec![0; 4096];
            let read = client.read(&mut answer).await.unwrap();
            assert!(answer[..read].ends_with(b"/one"));
            tokio::time::sleep(Duration::from_secs(3600)).await;
            // It may be closed.
            let _ = client.write_all(b"GET /two HTTP/1.1\r\nHost: x\r\n\r\n").await;
            let read = client.read(&mut answer).await.unwrap();
            answer[..read].to_vec()
        };
        let (answer, ()) = tokio::join!(asking, conversation);
        answer
    }

    /// What is told of a body whose second half comes so much later, where it has a minute.
    async fn of_halves(pause: Duration) -> String {
        let (mut client, server) = tokio::io::duplex(4096);
        let length = |request: Request<Incoming>| async move {
            let minute = Duration::from_secs(60);
            let told = body(&mut request.into_body(), 100, minute, async |_| Ok(())).await;
            let told = told.map_or_else(|error| error.what, |(bytes, _)| bytes.len().to_string());
            closing(with_type(StatusCode::OK, "text/plain", told.into()))
        };
        let heads = Heads { bytes: 8192, time: None };
        let asking = async move {
            const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab";
            client.write_all(HEAD).await.unwrap();
            tokio::time::sleep(pause).await;
            // It may have been answered by then.
            let _ = client.write_all(b"cd").await;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (answer, ()) =
            tokio::join!(asking, converse(server, heads, length, std::future::pending()));
        answer
    }

    /// A response that a function streams has the function's time, which may be more than other bodies have.
    #[tokio::test(start_paused = true)]
    async fn a_body_has_the_time_that_it_is_given() {
        assert!(of_halves(Duration::from_secs(40)).await.ends_with("\r\n\r\n4"));
        assert!(of_halves(Duration::from_secs(80)).await.ends_with("the body did not come"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_of_its_answer_is_left() {
        const LENGTH: usize = 1 << 20;
        let large = |_| async { with_type(StatusCode::OK, "text/plain", vec![7; LENGTH].into()) };
        for (pause, is_left) in [(Duration::from_secs(20), false), (Duration::from_secs(40), true)]
        {
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let reading = async move {
                client
                    .write_all(
                        b"GET / HTTP/1.1
Host: x
Connection: close

",
                    )
                    .await
                    .unwrap();
                let (mut answer, mut read) = (vec![0; LENGTH], 0);
                loop {
                    tokio::time::sleep(pause).await;
                    match client.read(&mut answer).await {
                        Ok(0) => return read,
                        Ok(more) => read += more,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let conversation =
                converse(server, Heads { bytes: 8192, time: None }, large, std::future::pending());
            let (read, ()) = tokio::join!(reading, conversation);
            assert_eq!(read < LENGTH, is_left, "{read} after {pause:?}");
        }
    }

    /// A head that came with the request before it had its time while that one's answer was read.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_no_head_that_has_begun() {
        const LENGTH: usize = 1 << 20;
        const AHEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT";
        let large = |_| async { with_type(StatusCode::OK, "text/plain", vec![7; LENGTH].into()) };
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let heads = Heads { bytes: 8192, time: Some(HeadTime::Begun(Duration::from_secs(10))) };
        let reading = async move {
            client.write_all(AHEAD).await.unwrap();
            let (mut answer, mut read) = (vec![0; LENGTH], 0);
            while read < LENGTH {
                tokio::time::sleep(Duration::from_secs(15)).await;
                match client.read(&mut answer).await.unwrap() {
                    0 => panic!("it ended after {read} bytes"),
                    more => read += more,
                }
            }
            client.read_to_end(&mut answer).await.unwrap()
        };
        tokio::join!(reading, converse(server, heads, large, std::future::pending()));
    }

    /// The connection stayed, on which each later answer was taken for the beginning of a head.
    #[tokio::test(start_paused = true)]
    async fn a_timed_connection_ends_behind_a_body_of_unknown_length() {
        const CHUNKED: &[u8] =
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        const AN_HOUR: Duration = Duration::from_secs(3600);
        let ten = Duration::from_secs(10);
        for (time, ends) in [(Some(HeadTime::Begun(ten)), true), (None, false)] {
            let (mut client, server) = tokio::io::duplex(4096);
            let echo = |request: Request<Incoming>| async move {
                let whole =
                    body(&mut request.into_body(), 100, ten, async |_| Ok(())).await.unwrap().0;
                with_type(StatusCode::OK, "text/plain", whole)
            };
            let conversation =
                converse(server, Heads { bytes: 8192, time }, echo, std::future::pending());
            let asking = async move {
                client.write_all(CHUNKED).await.unwrap();
                let mut answer = vec![0; 4096];
                let read = client.read(&mut answer).await.unwrap();
                let first = String::from_utf8_lossy(&answer[..read]).to_lowercase();
                assert_eq!(first.contains("connection: close"), ends, "{first}");
                if ends {
                    assert_eq!(client.read(&mut answer).await.unwrap(), 0);
                    return;
                }
                for request in ["GET /next HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\n\r\n"] {
                    client.write_all(request.as_bytes()).await.unwrap();
                    assert_ne!(client.read(&mut answer).await.unwrap(), 0, "{request:?}");
                    tokio::time::sleep(AN_HOUR).await;
                }
            };
            let begun = Instant::now();
            tokio::join!(asking, conversation);
            assert_eq!(begun.elapsed() < ten, ends);
        }
    }

    /// Half a head was waited for without an end, where heads have no time.
    #[tokio::test(start_paused = true)]
    async fn what_is_to_end_waits_for_answers_and_not_for_heads() {
        for (sent, is_answered) in [("GET / HT", false), ("GET / HTTP/1.1\r\n\r\n", true)] {
            let (mut client, server) = tokio::io::duplex(4096);
            let slow = |_| async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                with_type(StatusCode::OK, "text/plain", "late".into())
            };
            let ended = tokio::time::sleep(Duration::from_secs(1));
            let conversation = converse(server, Heads { bytes: 8192, time: None }, slow, ended);
            client.write_all(sent.as_bytes()).await.unwrap();
            let most = Duration::from_secs(100);
            tokio::time::timeout(most, conversation).await.expect("it ends");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.ends_with("late"), is_answered, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_head_has_so_many_bytes() {
        for (length, status) in [(7000, "200"), (9000, "431")] {
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let nothing = |_| async { with_type(StatusCode::OK, "text/plain", Bytes::new()) };
            let heads = Heads { bytes: 8192, time: None };
            let conversation = converse(server, heads, nothing, std::future::pending());
            let asking = async move {
                let head =
                    format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(length));
                client.write_all(head.as_bytes()).await.unwrap();
                let mut answer = vec![0; 4096];
                let read = client.read(&mut answer).await.unwrap();
                String::from_utf8_lossy(&answer[..read]).into_owned()
            };
            let (answer, ()) = tokio::join!(asking, conversation);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_for_the_next_request_as_long_as_it_may() {
        let ten = Duration::from_secs(10);
        assert!(after_an_hour(None).await.ends_with(b"/two"));
        assert!(after_an_hour(Some(HeadTime::Begun(ten))).await.ends_with(b"/two"));
        let timed = after_an_hour(Some(HeadTime::Each(ten))).await;
        assert!(!timed.ends_with(b"/two"), "{}", String::from_utf8_lossy(&timed));
    }

    /// Any number of halves of heads were kept, where a connection may be idle as long as it likes.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_comes_to_its_end() {
        const TEN: Duration = Duration::from_secs(10);
        const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        const POST: &str = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";
        const CHUNKED: &str =
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let time = HeadTime::Begun(TEN);
        let half = |of: &str| format!("{of}GET / HT");
        for (sent, then, is_closed) in [
            (String::new(), "", true),
            (half(""), "", true),
            (GET.into(), "", false),
            (GET.repeat(2), "", true),
            (GET.into(), "GET / HT", true),
            (half(GET), "", true),
            (POST.into(), "", false),
            (format!("{POST}{GET}"), "", true),
            (POST.into(), "GET / HT", true),
            (half(POST), "", true),
            // Nobody can tell.
            (CHUNKED.into(), "", true),
        ] {
            let (mut client, server) = tokio::io::duplex(4096);
            let slow = |request: Request<Incoming>| async move {
                let whole = body(&mut request.into_body(), 100, TEN * 100, async |_| Ok(())).await;
                // A request may take longer than a head.
                tokio::time::sleep(TEN * 2).await;
                with_type(StatusCode::OK, "text/plain", whole.unwrap().0)
            };
            let heads = Heads { bytes: 8192, time: Some(time) };
            let conversation = converse(server, heads, slow, std::future::pending());
            client.write_all(sent.as_bytes()).await.unwrap();
            let writing = async {
                tokio::time::sleep(TEN * 3).await;
                // It may be closed.
                let _ = client.write_all(then.as_bytes()).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                closed = tokio::time::timeout(TEN * 100, conversation) => {
                    assert_eq!(closed.is_ok(), is_closed, "{sent:?} {then:?}");
                }
                () = writing => {}
            }
        }
    }
}
