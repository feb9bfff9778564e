//! What the orchestrator has in files: sockets, bundles, and which containers there are.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::protocol::{CONTROL_SOCKET, MODULE};
use crate::schedule::ContainerId;

/// The first part of the ids that the runtime knows our containers by.
const PREFIX: &str = "elver-faas-";

/// What a Python runtime runs.
const BOOTSTRAP: &str = include_str!("../python/bootstrap.py");

/// What it has of RDMA.
const CONTEXT: &str = include_str!("../python/elver_context.py");

/// What ends that a child leaves behind.
const STRAYS: &str = include_str!("../python/strays.py");

/// How long an orchestrator waits for what another one's last commands are about.
const LOCK_MAX: Duration = Duration::from_secs(5);

/// Programs of the host's that containers get.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// `elver-init`.
    pub init: &'a Path,
    /// The module `elver` for Python; without it handlers have no RDMA from the platform.
    pub module: Option<&'a Path>,
}

/// The directory of an orchestrator, which alone works in it.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    _lock: std::fs::File,
}

impl StateDirectory {
    /// Where it is if nobody says.
    pub fn default_path() -> PathBuf {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = runtime.filter(|base| base.is_absolute());
        base.unwrap_or_else(|| "/run".into()).join("elver/faas")
    }

    /// Opens it, making what is missing, and puts the programs there that containers run.
    ///
    /// # Errors
    /// What the system says, and `AddrInUse` if another orchestrator works in it.
    pub fn open(path: &Path, programs: &Programs<'_>) -> io::Result<StateDirectory> {
        for part in ["containers", "programs", "runtime", "node"] {
            std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path.join(part))?;
        }
        // Python lists where it imports from.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path.join("programs"), readable)?;
        let lock = std::fs::File::create(path.join("lock"))?;
        wait_for_lock(&lock, path)?;
        // The runtime's commands keep it: what one of them was about when its orchestrator was killed is
        // done before another orchestrator looks.
        fcntl_setfd(&lock, FdFlags::empty())?;
        let state = StateDirectory { path: path.to_path_buf(), _lock: lock };
        state.install("elver-init", &std::fs::read(programs.init)?, 0o755)?;
        state.install("bootstrap.py", BOOTSTRAP.as_bytes(), 0o644)?;
        state.install("elver_context.py", CONTEXT.as_bytes(), 0o644)?;
        state.install("strays.py", STRAYS.as_bytes(), 0o644)?;
        match programs.module {
            Some(module) => state.install(MODULE, &std::fs::read(module)?, 0o644)?,
            None => state.uninstall(MODULE)?,
        }
        Ok(state)
    }

    /// Where callers ask.
    pub fn front_socket(path: &Path) -> PathBuf {
        path.join("front.sock")
    }

    /// Where this orchestrator's callers ask.
    pub fn own_front_socket(&self) -> PathBuf {
        StateDirectory::front_socket(&self.path)
    }

    /// What is mounted into each container.
    pub fn programs(&self) -> PathBuf {
        self.path.join("programs")
    }

    /// What has the node's socket, and is mounted into each container.
    pub fn node(&self) -> PathBuf {
        self.path.join("node")
    }

    /// Where the runtime keeps its own state.
    pub fn runtime_root(&self) -> PathBuf {
        self.path.join("runtime")
    }

    /// The id that the runtime knows a container by.
    pub fn name(id: ContainerId) -> String {
        format!("{PREFIX}{}", id.0)
    }

    /// The directory of a container: its bundle and all that is its own.
    pub fn container(&self, id: ContainerId) -> PathBuf {
        self.path.join("containers").join(StateDirectory::name(id))
    }

    /// A container's sockets, on the host.
    pub fn sockets(&self, id: ContainerId) -> PathBuf {
        self.container(id).join("sockets")
    }

    /// Where a container tells and is ordered.
    pub fn control_socket(&self, id: ContainerId) -> PathBuf {
        self.sockets(id).join(CONTROL_SOCKET)
    }

    /// Makes a container's directories. Its sockets are of its user.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(&self, id: ContainerId, uid: u32, owner: &str) -> io::Result<()> {
        let sockets = self.sockets(id);
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&sockets)?;
        std::fs::write(self.container(id).join("owner"), owner)?;
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o500))?;
        self.give(&sockets, uid)
    }

    /// Lets the container's user reach a file, where that is not our own.
    ///
    /// # Errors
    /// What the system says.
    pub fn give(&self, path: &Path, uid: u32) -> io::Result<()> {
        if std::fs::metadata(path)?.uid() == uid {
            return Ok(());
        }
        chown(path, Some(uid), Some(uid))
    }

    /// Containers that have a directory here, with their owners' names.
    ///
    /// # Errors
    /// What the system says.
    pub fn containers(&self) -> io::Result<Vec<(ContainerId, String)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.path.join("containers"))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                // One that was killed before it wrote the name is of nobody, and removed.
                let owner = std::fs::read_to_string(entry.path().join("owner"));
                found.push((ContainerId(number), owner.unwrap_or_default()));
            }
        }
        Ok(found)
    }

    /// Removes all that a container had, which has ended.
    pub fn remove(&self, id: ContainerId) {
        if let Err(error) = std::fs::remove_dir_all(self.container(id))
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("cannot remove {}: {error}", self.container(id).display());
        }
    }

    fn uninstall(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.programs().join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Replaces a program; containers that run keep the one that they have.
    fn install(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let path = self.programs().join(name);
        let new = path.with_extension("new");
        std::fs::write(&new, bytes)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&new, &path)
    }
}

fn wait_for_lock(lock: &std::fs::File, path: &Path) -> io::Result<()> {
    let begun = Instant::now();
    while flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > LOCK_MAX {
            let what = format!("another orchestrator works in {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
