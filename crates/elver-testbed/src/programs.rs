//! The programs that a testbed starts: the daemon, and whoever runs its workers' tasks.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use elver_console::Failure;
use rustix::process::{Signal, set_parent_process_death_signal};

/// What containers get, as cargo builds it and as packages have it.
const INIT: [&str; 2] = ["elver-init", "../lib/elver/elver-init"];
const MODULE: [&str; 2] = ["libelver_python.so", "../lib/elver/elver.abi3.so"];

/// Where they are. The program that makes a testbed also runs its workers: it takes a word as its
/// first argument, gives the second one to [`worker::run`](crate::worker::run), and ends as that
/// does.
#[derive(Clone, Debug)]
pub struct Programs {
    own: PathBuf,
    word: &'static str,
}

impl Programs {
    /// Workers are this program's, at this word.
    pub fn new(own: PathBuf, word: &'static str) -> Programs {
        Programs { own, word }
    }

    /// The program that makes the testbed.
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// A worker with a task.
    pub fn worker(&self, task: &str) -> Command {
        let mut command = Command::new(&self.own);
        command.arg(self.word).arg(task);
        command
    }

    /// The first process of containers, if it is there.
    pub fn init(&self) -> Option<PathBuf> {
        self.beside(&INIT)
    }

    /// The module of Python that containers get, if it is there.
    pub fn module(&self) -> Option<PathBuf> {
        self.beside(&MODULE)
    }

    /// The first of these files that is there, from the directory of our own program.
    fn beside(&self, names: &[&str]) -> Option<PathBuf> {
        names.iter().map(|name| self.own.with_file_name(name)).find(|path| path.exists())
    }

    /// The `elverd` beside our own program, else the one that the PATH has.
    ///
    /// # Errors
    ///
    /// [`Failure::Unusable`] if there is none, with how it is built.
    pub fn elverd(&self) -> Result<PathBuf, Failure> {
        let beside = self.own.parent();
        // Test programs stand a directory below the programs.
        let above = beside.and_then(Path::parent);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = beside.into_iter().chain(above).map(Path::to_path_buf);
        let places = places.chain(std::env::split_paths(&path));
        let mut programs = places.map(|place| place.join("elverd"));
        programs.find(|program| program.is_file()).ok_or_else(|| {
            Failure::unusable(format!(
                "there is no `elverd` beside {} nor in PATH: build it with \
                 `cargo build -p elverd`",
                self.own.display()
            ))
        })
    }
}

/// Lets the kernel kill the child when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command) {
    end_with_parent(command, Signal::KILL);
}

/// Lets the kernel send the child this signal when the thread that starts it ends.
pub(crate) fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    let ask = move || {
        set_parent_process_death_signal(Some(signal))?;
        // It may have ended before it could be told.
        let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        if now == Some(parent) { Ok(()) } else { Err(std::io::Error::other("parent is gone")) }
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing unless the
    // parent is gone, when nobody waits for the child.
    unsafe { command.pre_exec(ask) };
}
