//! What makes containers, by its command line: an OCI runtime (crun, runc, or another that has the same commands), or an
//! engine over one (podman, docker).

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use crate::bundle::Bundle;

/// How long a command of the runtime may take.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(30);

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
    /// What it printed has not the form of its list, or of a container's state.
    #[error("what the runtime says cannot be read: {0}")]
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

#[derive(Deserialize)]
struct State {
    pid: i32,
}

/// The runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    words: Vec<String>,
    root: PathBuf,
    hides_hybrid: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It takes bundles, and knows the containers under a root of our own.
    Oci,
    /// It takes a directory as a root file system, and knows all of the host's containers.
    Podman,
    /// It takes images alone.
    Docker,
}

/// The image that an engine makes of an empty tree, into which the host's `/usr` is mounted.
const EMPTY_IMAGE: &str = "elver-faas-root:latest";

/// What marks the containers of one orchestrator, with its root as the value.
const LABEL: &str = "elver.faas";

impl Runtime {
    /// The runtime of a command, which keeps its state under `root`. Unless it is to limit by cgroups, crun runs without them,
    /// and where the host's are hybrid in a mount namespace that lacks the hierarchy that it refuses.
    pub fn new(command: &[String], root: PathBuf, cgroups: bool) -> Runtime {
        let mut words = command.to_vec();
        let program = words.first().map(Path::new).and_then(Path::file_name);
        let is = |wanted: &str| program.is_some_and(|name| name == wanted);
        let kind = match () {
            () if is("podman") => Kind::Podman,
            () if is("docker") => Kind::Docker,
            () => Kind::Oci,
        };
        let is_crun = is("crun") && !cgroups;
        if is_crun && !words.iter().any(|word| word.starts_with("--cgroup-manager")) {
            words.push("--cgroup-manager=disabled".into());
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let is_hybrid =
            mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| at == HYBRID));
        Runtime { words, root, hides_hybrid: is_crun && is_hybrid, kind }
    }

    /// Makes a container and starts it. What it writes goes to `log`, or where an engine keeps it.
    ///
    /// # Errors
    /// [`RuntimeError`] with what the runtime said; there is no container then.
    pub async fn run(&self, bundle: &Bundle<'_>, id: &str, log: &Path) -> Result<(), RuntimeError> {
        let failed = |error: std::io::Error| RuntimeError::Failed {
            command: format!("making the bundle of {id}"),
            said: error.to_string(),
        };
        let ran = match self.kind {
            Kind::Oci => {
                bundle.write().map_err(failed)?;
                let directory = bundle.directory.to_string_lossy();
                // The container inherits what the runtime writes to, so that it is no pipe of ours.
                let arguments = ["run", "--detach", "--bundle", &directory, id];
                self.call(&arguments.map(String::from), Some(log)).await
            }
            Kind::Podman | Kind::Docker => {
                let arguments = self.engine_run(bundle, id).await?;
                self.call(&arguments, None).await
            }
        };
        if ran.is_err() {
            // What a runtime leaves of a container that did not start keeps its id taken.
            let _ = self.delete(id).await;
        }
        ran.map(drop)
    }

    async fn engine_run(&self, bundle: &Bundle<'_>, id: &str) -> Result<Vec<String>, RuntimeError> {
        let failed = |error: std::io::Error| RuntimeError::Failed {
            command: format!("making the root of {id}"),
            said: error.to_string(),
        };
        let root = match bundle.rootfs {
            Some(rootfs) => rootfs.to_path_buf(),
            None => bundle.host_rootfs().map_err(failed)?,
        };
        let label = self.label();
        let mut arguments: Vec<String> =
            ["run", "--detach", "--name", id, "--label", &label].map(String::from).into();
        arguments.extend(bundle.engine_arguments());
        match (self.kind, bundle.image) {
            (_, Some(image)) => arguments.push(image.into()),
            (Kind::Podman, None) => {
                arguments.push("--read-only-tmpfs=false".into());
                arguments.extend(["--rootfs".into(), root.to_string_lossy().into_owned()]);
            }
            (Kind::Docker | Kind::Oci, None) => {
                self.import(&root).await?;
                arguments.push(EMPTY_IMAGE.into());
            }
        }
        arguments.push(bundle.program());
        Ok(arguments)
    }

    /// Makes an image of a tree.
    async fn import(&self, root: &Path) -> Result<(), RuntimeError> {
        let script = format!("tar -C \"$0\" -c . | \"$@\" import - {EMPTY_IMAGE}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(root).args(&self.words).stdin(Stdio::null());
        self.finish(command, "making the image of an empty tree", None).await.map(drop)
    }

    /// Kills all that runs in a container, and removes it. One that is not there is removed, whatever the runtime says of
    /// it: some call that an error.
    ///
    /// # Errors
    /// [`RuntimeError`] with what the runtime said.
    pub async fn delete(&self, id: &str) -> Result<(), RuntimeError> {
        let arguments: &[&str] = match self.kind {
            Kind::Oci => &["delete", "--force", id],
            // It would first ask the container to end, and wait.
            Kind::Podman => &["rm", "--force", "--time", "0", id],
            Kind::Docker => &["rm", "--force", id],
        };
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).into()).collect();
        let Err(error) = self.call(&arguments, None).await else { return Ok(()) };
        match self.list().await {
            Ok(listed) if listed.iter().all(|container| container.id != id) => Ok(()),
            _ => Err(error),
        }
    }

    /// All containers under this root.
    ///
    /// # Errors
    /// [`RuntimeError`], also where the list has another form.
    pub async fn list(&self) -> Result<Vec<Listed>, RuntimeError> {
        if self.kind == Kind::Oci {
            let said = self.call(&["list", "--format", "json"].map(String::from), None).await?;
            // runc says null where there are none.
            let listed: Option<Vec<Listed>> = serde_json::from_slice(&said)?;
            return Ok(listed.unwrap_or_default());
        }
        let filter = format!("label={}", self.label());
        let form = "{{.Names}} {{.State}}";
        let arguments = ["ps", "--all", "--filter", &filter, "--format", form];
        let said = self.call(&arguments.map(String::from), None).await?;
        let text = String::from_utf8_lossy(&said).into_owned();
        let row = |line: &str| {
            let (id, status) = line.split_once(' ')?;
            // podman says since when.
            let status = if status.starts_with("Up") { "running" } else { status };
            Some(Listed { id: id.into(), status: status.into() })
        };
        Ok(text.lines().filter_map(row).collect())
    }

    /// The first process of a container, as the host numbers it.
    ///
    /// # Errors
    /// [`RuntimeError`], also where there is none, or the answer has another form.
    pub async fn first_process(&self, id: &str) -> Result<i32, RuntimeError> {
        let arguments: &[&str] = match self.kind {
            Kind::Oci => &["state", id],
            Kind::Podman | Kind::Docker => {
                &["inspect", "--format", "{\"pid\": {{.State.Pid}}}", id]
            }
        };
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).into()).collect();
        let said = self.call(&arguments, None).await?;
        let State { pid } = serde_json::from_slice(&said)?;
        Ok(pid)
    }

    fn label(&self) -> String {
        format!("{LABEL}={}", self.root.display())
    }

    async fn call(
        &self,
        arguments: &[String],
        log: Option<&Path>,
    ) -> Result<Vec<u8>, RuntimeError> {
        let mut command = self.command();
        if self.kind == Kind::Oci {
            command.arg("--root").arg(&self.root);
        }
        command.args(arguments).stdin(Stdio::null());
        let described = format!("{} {}", self.words[0], arguments.join(" "));
        self.finish(command, &described, log).await
    }

    async fn finish(
        &self,
        mut command: Command,
        described: &str,
        log: Option<&Path>,
    ) -> Result<Vec<u8>, RuntimeError> {
        let failed = |said: String| RuntimeError::Failed { command: described.into(), said };
        command.kill_on_drop(true);
        if let Some(log) = log {
            // Who writes it reads it too, to keep the end of what is full. What functions print is their owner's, and others may
            // pass through the directory.
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).mode(0o600);
            let opened = options.open(log);
            let out = opened.map_err(|error| failed(format!("{}: {error}", log.display())))?;
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
