//! Recording what goes over a running node's link: what `elver capture` asks for.
//!
//! A Unix socket beside the one for processes serves it, to the node's user and root alone. Who
//! connects says what is wanted ([`CaptureOptions`], a line of JSON), and is sent pcapng from then on,
//! until the sending side of that end is shut down: then comes the statistics block, and the end. What cannot be
//! is answered by a line of text.

mod names;
mod options;
mod server;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use elver_portal::connect_stream;

use crate::asking::{told, trusted, unheard};
use crate::config::{SOCKET_VARIABLE, capture_path};

pub(crate) use names::{NAMES_MAX, VqpName};
pub use options::{BUFFER_BYTES_MAX, CaptureOptions};
pub(crate) use server::Capturer;

/// How long a node may take to begin.
const WAIT: Duration = Duration::from_secs(5);
/// The longest refusal.
const REFUSAL_BYTES_MAX: u64 = 4_096;
/// What pcapng begins with; no refusal does.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A capture of a running node: what is read from it is pcapng.
#[derive(Debug)]
pub struct CaptureStream {
    stream: UnixStream,
    /// Of its beginning, what was looked at already.
    head: io::Cursor<[u8; 4]>,
}

impl CaptureStream {
    /// Has the node whose processes find it at `socket` record what goes over its link.
    ///
    /// # Errors
    /// No node offers it there, this process is not of the node's user, the node refuses, or the socket is another
    /// user's below `/tmp`; the text says which, and what to do.
    pub fn open(socket: &Path, options: &CaptureOptions) -> io::Result<CaptureStream> {
        let path = capture_path(socket);
        let mut stream = connect_stream(&path, WAIT).map_err(|error| {
            if error.kind() == io::ErrorKind::TimedOut {
                return unheard(error, "the node does not let this process in", &path, WAIT);
            }
            let path = path.display();
            let what = match error.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "only the node's own user and root may record what it sends ({path}); run this as \
                     one of them"
                ),
                _ => format!(
                    "no node can be recorded at {path}; start `elverd`, or name its socket with \
                     --socket or in {SOCKET_VARIABLE}"
                ),
            };
            told(error, &what)
        })?;
        trusted(&path, &stream)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut request = serde_json::to_vec(options)?;
        request.push(b'\n');
        // Who is refused hears why, though nothing of his was read.
        let sent = stream.write_all(&request);
        let mut head = [0; 4];
        stream
            .read_exact(&mut head)
            .map_err(|error| unheard(error, "the node does not begin to record", &path, WAIT))?;
        if head != PCAPNG {
            let mut text = head.to_vec();
            // What came of it is told.
            let _ = (&stream).take(REFUSAL_BYTES_MAX).read_to_end(&mut text);
            let text = String::from_utf8_lossy(&text).trim_end().to_string();
            return Err(io::Error::other(text));
        }
        sent?;
        stream.set_read_timeout(None)?;
        Ok(CaptureStream { stream, head: io::Cursor::new(head) })
    }

    /// Ends the recording: what was recorded until now can still be read, then the end.
    ///
    /// # Errors
    ///
    /// What the system said: the node has closed its end already.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}

impl Drop for CaptureStream {
    /// A child that another thread is just making has a copy of the socket until it runs its program: the node hears of the end
    /// all the same, and records for the next one.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Read for CaptureStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.head.read(bytes)? {
            0 => self.stream.read(bytes),
            count => Ok(count),
        }
    }
}

impl AsFd for CaptureStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
