//! Clients that are processes of their own, and where tests may do so, another user's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};

use super::daemon::Directory;

/// Name of the variable that makes a test a client of the daemon there.
const CLIENT_OF: &str = "ELVERD_TEST_CLIENT_OF";
/// Name of the variable with what else it must know.
const CLIENT_KNOWS: &str = "ELVERD_TEST_CLIENT_KNOWS";

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user of clients that nobody trusts: another, if the tests are root's.
pub fn nobody() -> Option<u32> {
    is_root().then_some(65_534)
}

/// Copies a program. Not in this process: one that another thread starts meanwhile would hold the
/// file open for writing, and then it cannot be run.
pub fn copy(program: &Path, to: &Path) {
    assert!(Command::new("cp").arg(program).arg(to).status().unwrap().success());
}

/// What a client's process was told: its daemon's socket, and what else it knows. None in a test
/// that nobody started as a client.
pub fn role() -> Option<(std::path::PathBuf, String)> {
    let socket = std::env::var_os(CLIENT_OF)?;
    Some((socket.into(), std::env::var(CLIENT_KNOWS).unwrap_or_default()))
}

/// A client's process. It ends when it is dropped.
pub struct Process {
    child: Child,
    lines: BufReader<ChildStderr>,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Runs a test of this program as nobody's process.
    pub fn start(directory: &Directory, socket: &Path, test: &str, knows: &str) -> Process {
        Process::start_by(&[], directory, socket, test, knows)
    }

    /// Runs a test of this program as a process that a command starts: as root's, if that makes it
    /// no other's. Without a command it is nobody's.
    pub fn start_by(
        by: &[&str],
        directory: &Directory,
        socket: &Path,
        test: &str,
        knows: &str,
    ) -> Process {
        // Where the tests were built nobody may have no business.
        let program = directory.path.join("client");
        if !program.exists() {
            copy(&std::env::current_exe().unwrap(), &program);
        }
        let mut command = match by {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command
            .args(["--exact", test, "--nocapture"])
            .current_dir("/")
            .env(CLIENT_OF, socket)
            .env(CLIENT_KNOWS, knows)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(uid) = nobody().filter(|_| by.is_empty()) {
            command.uid(uid);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Process { child, lines, stdin }
    }

    /// The next line that it says.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Lets one that waits go on.
    pub fn goes(&mut self) {
        writeln!(self.stdin.as_mut().unwrap()).unwrap();
    }

    /// Lets one that waits for the end of its standard input go on to its end.
    pub fn ends(mut self) {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a line, or for the end, of the standard input: until then this process keeps what it has.
pub fn stay() {
    let _ = std::io::stdin().read_line(&mut String::new());
}
