//! An OCI runtime by its command line: crun, runc, or another that has the same commands.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

/// How long a command of the runtime may take.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// Where a hybrid host has the hierarchy of cgroups that crun refuses to see beside others.
const HYBRID: &str = "/sys/fs/cgroup/unified";

/// Why the runtime did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// It could not be started.
    #[error("cannot run {program:?}: {error}; install it, or name another as platform.runtime")]
    NotRun {
        /// The program.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// It failed.
    #[error("{command} failed: {said}")]
    Failed {
        /// The command.
        command: String,
        /// What it wrote on standard error, or how it ended.
        said: String,
    },
    /// What it printed has not the form of its list.
    #[error("the runtime's list cannot be read: {0}")]
    List(#[from] serde_json::Error),
}

/// A container that the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// `running`, `stopped` or `created`.
    pub status: String,
}

/// The runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    words: Vec<String>,
    root: PathBuf,
    hides_hybrid: bool,
}

impl Runtime {
    /// The runtime of a command, which keeps its state under `root`. crun runs without cgroups, and where the
    /// host's are hybrid in a mount namespace that lacks the hierarchy that it refuses.
    pub fn new(command: &[String], root: PathBuf) -> Runtime {
        let mut words = command.to_vec();
        let program = words.first().map(Path::new).and_then(Path::file_name);
        let is_crun = program.is_some_and(|name| name == "crun");
        if is_crun && !words.iter().any(|word| word.starts_with("--cgroup-manager")) {
            words.push("--cgroup-manager=disabled".into());
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let is_hybrid =
            mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| at == HYBRID));
        Runtime { words, root, hides_hybrid: is_crun && is_hybrid }
    }

    /// Makes a container of a bundle and starts it. What it writes goes to `log`.
    ///
    /// # Errors
    /// [`RuntimeError`] with what the runtime said; there is no container then.
    pub async fn run(&self, bundle: &Path, id: &str, log: &Path) -> Result<(), RuntimeError> {
        let bundle = bundle.to_string_lossy();
        // The container inherits what the runtime writes to, so that it is no pipe of ours.
        let written = self.call(&["run", "--detach", "--bundle", &bundle, id], Some(log)).await;
        if written.is_err() {
            // What a runtime leaves of a container that did not start keeps its id taken.
            let _ = self.delete(id).await;
        }
        written.map(drop)
    }

    /// Kills all that runs in a container, and removes it. One that is not there is removed.
    ///
    /// # Errors
    /// [`RuntimeError`] with what the runtime said.
    pub async fn delete(&self, id: &str) -> Result<(), RuntimeError> {
        self.call(&["delete", "--force", id], None).await.map(drop)
    }

    /// All containers under this root.
    ///
    /// # Errors
    /// [`RuntimeError`], also where the list has another form.
    pub async fn list(&self) -> Result<Vec<Listed>, RuntimeError> {
        let said = self.call(&["list", "--format", "json"], None).await?;
        // runc says null where there are none.
        let listed: Option<Vec<Listed>> = serde_json::from_slice(&said)?;
        Ok(listed.unwrap_or_default())
    }

    async fn call(&self, arguments: &[&str], log: Option<&Path>) -> Result<Vec<u8>, RuntimeError> {
        let described = || format!("{} {}", self.words[0], arguments.join(" "));
        let failed = |said: String| RuntimeError::Failed { command: described(), said };
        let mut command = self.command();
        command
            .arg("--root")
            .arg(&self.root)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(log) = log {
            let file =
                || File::create(log).map_err(|error| failed(format!("{}: {error}", log.display())));
            let out = file()?;
            let err = out.try_clone().map_err(|error| failed(error.to_string()))?;
            command.stdout(out).stderr(err);
        } else {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let child = command
            .spawn()
            .map_err(|error| RuntimeError::NotRun { program: self.words[0].clone(), error })?;
        let Ok(done) = tokio::time::timeout(COMMAND_MAX, child.wait_with_output()).await else {
            return Err(failed(format!("no answer within {} s", COMMAND_MAX.as_secs())));
        };
        let done = done.map_err(|error| failed(error.to_string()))?;
        if done.status.success() {
            return Ok(done.stdout);
        }
        let said = match log {
            Some(log) => std::fs::read_to_string(log).unwrap_or_default(),
            None => String::from_utf8_lossy(&done.stderr).into_owned(),
        };
        Err(failed(format!("{}, {}", said.trim(), done.status)))
    }

    fn command(&self) -> Command {
        if !self.hides_hybrid {
            let mut command = Command::new(&self.words[0]);
            command.args(&self.words[1..]);
            return command;
        }
        let script = format!("umount {HYBRID} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .args(&self.words);
        command
    }
}
