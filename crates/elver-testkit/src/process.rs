//! Other processes: tests of the same program, which are run by its name and find out what they are.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Name of the variable that makes a test another's process.
const SOCKET: &str = "ELVER_TEST_SOCKET";
/// Name of the variable with what else it must know.
const KNOWS: &str = "ELVER_TEST_KNOWS";

/// What a test was told that runs as another's process.
#[derive(Clone, Debug)]
pub struct Role {
    /// Of the node that it belongs to.
    pub socket: PathBuf,
    /// What else [`Launch::knows`] has told it.
    pub knows: String,
}

/// What this process was told; none in a test that nobody started as a process of its own.
pub fn role() -> Option<Role> {
    let socket = std::env::var_os(SOCKET)?.into();
    Some(Role { socket, knows: std::env::var(KNOWS).unwrap_or_default() })
}

/// Waits for a line, or for the end, of the standard input: until then this process keeps what it has.
pub fn stay() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Whether the tests are root's.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies a program. Not in this process: one that another thread starts meanwhile would hold the file open for
/// writing, and then it cannot be run.
pub fn copy(program: &Path, to: &Path) {
    let copied = Command::new("cp").arg(program).arg(to).status().unwrap();
    assert!(copied.success(), "{} cannot be copied to {}", program.display(), to.display());
}

/// How a test of this program is started as a process of its own. By its whole name, with the modules it is in.
#[derive(Clone, Debug)]
pub struct Launch {
    by: Vec<String>,
    program: PathBuf,
    test: String,
    socket: PathBuf,
    knows: String,
    user: Option<u32>,
}

impl Launch {
    /// Of a test, beside the node that listens at a path.
    pub fn new(test: &str, socket: &Path) -> Launch {
        Launch {
            by: Vec::new(),
            program: std::env::current_exe().unwrap(),
            test: test.into(),
            socket: socket.into(),
            knows: String::new(),
            user: None,
        }
    }

    /// What else it must know.
    pub fn knows(mut self, knows: impl Display) -> Launch {
        self.knows = knows.to_string();
        self
    }

    /// A copy of this program: where the tests were built other users may have no business.
    pub fn program(mut self, program: &Path) -> Launch {
        self.program = program.into();
        self
    }

    /// As another user, and of the group of that number.
    pub fn user(mut self, user: u32) -> Launch {
        self.user = Some(user);
        self
    }

    /// By a command, which is followed by the program and its arguments.
    pub fn by(mut self, command: &[&str]) -> Launch {
        self.by = command.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts it.
    pub fn start(self) -> Process {
        let mut line = self.by.into_iter().map(OsString::from).chain([self.program.into()]);
        // There is the program at least.
        let mut command = Command::new(line.next().unwrap());
        command
            .args(line)
            .args(["--exact", &self.test, "--nocapture"])
            .current_dir("/")
            .env(SOCKET, self.socket)
            .env(KNOWS, self.knows)
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Process { child, lines, stdin }
    }
}

/// Another process, killed when this is dropped. What it says to its test it says on its standard error.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: BufReader<ChildStderr>,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// The next line that it says; nothing if it has ended.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Lets one that waits for a line ([`stay`]) go on.
    pub fn goes(&mut self) {
        writeln!(self.stdin.as_mut().unwrap()).unwrap();
    }

    /// Lets one that waits ([`stay`]) go on to its end, which is a good one.
    pub fn ends(mut self) {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
    }

    /// Stops it, and returns when none of its threads runs any more.
    pub fn stop(&mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Lets one that was stopped run on.
    pub fn resume(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Kills it, and waits until it has gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test of its own: says what it knows, and waits.
    #[test]
    fn process_that_says_what_it_knows() {
        let Some(Role { socket, knows }) = role() else { return };
        eprintln!("{knows} at {}", socket.display());
        stay();
        eprintln!("goes");
        stay();
    }

    fn start(by: &[&str]) -> Process {
        let test = "process::tests::process_that_says_what_it_knows";
        Launch::new(test, Path::new("/nowhere")).knows(7).by(by).start()
    }

    #[test]
    fn a_process_knows_and_waits() {
        let mut process = start(&[]);
        assert_eq!(process.says(), "7 at /nowhere");
        process.goes();
        assert_eq!(process.says(), "goes");
        process.ends();
    }

    #[test]
    fn a_command_starts_it() {
        let mut process = start(&["env", "ELVER_TEST_KNOWS=8"]);
        assert_eq!(process.says(), "8 at /nowhere");
        process.kill();
    }

    #[test]
    fn what_is_no_test_says_nothing() {
        let mut process = Launch::new("no_such_test", Path::new("/nowhere")).start();
        assert_eq!(process.says(), "");
    }
}
