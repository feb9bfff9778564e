//! What the orchestrator has in files: sockets, bundles, and which containers there are.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, fchmod, fchown, flock, open};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use crate::containers::COMMAND_MAX;
use crate::protocol::{CONTROL_SOCKET, MODULE};
use crate::schedule::ContainerId;

/// The first part of the ids that the runtime knows our containers by.
const PREFIX: &str = "elver-faas-";

/// What a Python runtime runs.
const BOOTSTRAP: &str = include_str!("../python/bootstrap.py");

/// What it has of RDMA.
const ASSIGNMENTS: &str = include_str!("../python/_elver_assignments.py");
const CONTEXT: &str = include_str!("../python/elver_context.py");

/// What ends that a child leaves behind.
const STRAYS: &str = include_str!("../python/_elver_strays.py");

/// Directories in an orchestrator's, of which the first has one for each container.
const PARTS: [&str; 4] = ["containers", "programs", "runtime", "node"];

/// How long an orchestrator waits for another one that works, which may be about to end.
const LOCK_MAX: Duration = Duration::from_secs(5);

/// How much longer than a runtime's command may take it waits for those of one that has ended.
const COMMANDS_MAX: Duration = COMMAND_MAX.saturating_add(LOCK_MAX);

/// What the orchestrator itself has locked while it works, and no command of its.
const WORKS: &str = "works";

/// Programs of the host's that containers get.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// `elver-init`.
    pub init: &'a Path,
    /// The module `elver` for Python; without it handlers have no RDMA from the platform.
    pub module: Option<&'a Path>,
}

/// By what a container was made. One that would be made otherwise today is not taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Its owner's name.
    pub owner: String,
    /// The command that knows it.
    pub runtime: Vec<String>,
    /// How often programs that containers run had been replaced.
    pub programs: u64,
    /// What the configuration said of it, of its owner and of his functions.
    pub configuration: String,
}

/// The directory of an orchestrator, which alone works in it.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    /// How often programs were replaced.
    replaced: u64,
    _lock: std::fs::File,
    _works: std::fs::File,
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
    /// What the system says, `AddrInUse` if another orchestrator works in it, or commands of one that has ended do, and
    /// `PermissionDenied` if others than its user can change what is there.
    pub fn open(path: &Path, programs: &Programs<'_>) -> io::Result<StateDirectory> {
        let directory =
            |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path);
        directory(path)?;
        check_owner(path)?;
        let lock = wait_for_lock(path, LOCK_MAX, COMMANDS_MAX)?;
        let works = open_lock(&path.join(WORKS))?;
        flock(&works, FlockOperation::LockExclusive)?;
        for part in PARTS {
            directory(&path.join(part))?;
        }
        // Python lists where it imports from.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path.join("programs"), readable)?;
        // The runtime's commands keep it: what one of them was about when its orchestrator was killed is
        // done before another orchestrator looks.
        fcntl_setfd(&lock, FdFlags::empty())?;
        let path = path.to_path_buf();
        let mut state = StateDirectory { path, replaced: 0, _lock: lock, _works: works };
        let init = std::fs::read(programs.init)?;
        let module = programs.module.map(std::fs::read).transpose()?;
        let installed = [
            ("elver-init", Some(&init[..]), 0o755),
            ("bootstrap.py", Some(BOOTSTRAP.as_bytes()), 0o644),
            ("_elver_assignments.py", Some(ASSIGNMENTS.as_bytes()), 0o644),
            ("elver_context.py", Some(CONTEXT.as_bytes()), 0o644),
            ("_elver_strays.py", Some(STRAYS.as_bytes()), 0o644),
            (MODULE, module.as_deref(), 0o644),
        ];
        state.replaced = state.count_replaced(&installed)?;
        for (name, bytes, mode) in installed {
            match bytes {
                Some(bytes) => state.install(name, bytes, mode)?,
                None => state.uninstall(name)?,
            }
        }
        Ok(state)
    }

    /// How often programs have been replaced, with this time if it is one. It is noted before any is.
    fn count_replaced(&self, installed: &[(&str, Option<&[u8]>, u32)]) -> io::Result<u64> {
        let count = self.path.join("replaced");
        let before = match std::fs::read(&count) {
            Ok(bytes) => {
                Some(str::from_utf8(&bytes).ok().and_then(|text| text.parse::<u64>().ok()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_there = |(name, bytes, _): &(&str, Option<&[u8]>, u32)| {
            std::fs::read(self.programs().join(name)).ok().as_deref() == *bytes
        };
        match before {
            Some(Some(before)) if installed.iter().all(is_there) => Ok(before),
            _ => {
                let before = before.map_or(0, |lost| lost.unwrap_or_else(unlike_any_before));
                let now = before.saturating_add(1);
                replace(&count, now.to_string().as_bytes(), 0o644)?;
                Ok(now)
            }
        }
    }

    /// How often programs that containers run have been replaced.
    pub fn replaced(&self) -> u64 {
        self.replaced
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

    /// Where what a container writes is kept: in a directory that nobody else can enter, since a runtime gives the file to the
    /// container's user.
    pub fn log(&self, id: ContainerId) -> PathBuf {
        self.container(id).join("private/log")
    }

    /// Where a container tells and is ordered.
    pub fn control_socket(&self, id: ContainerId) -> PathBuf {
        self.sockets(id).join(CONTROL_SOCKET)
    }

    /// Makes a container's directories.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(&self, id: ContainerId, uid: u32, terms: &Terms) -> io::Result<()> {
        let sockets = self.sockets(id);
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&sockets)?;
        std::fs::DirBuilder::new().mode(0o700).create(self.container(id).join("private"))?;
        let own = self.container(id).join("terms");
        // Functions' environments stand in it.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(own)?;
        file.write_all(&serde_json::to_vec(terms)?)?;
        self.show_sockets(id, uid)
    }

    /// Lets a container's user, by his group, pass through the directory of its sockets and list it. It stays our own: who
    /// could change it could have us give him what a link in place of a socket leads to. One that an earlier version gave away
    /// is taken back.
    ///
    /// # Errors
    /// What the system says.
    pub fn show_sockets(&self, id: ContainerId, uid: u32) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let sockets = open(self.sockets(id), flags, Mode::empty())?;
        let own = rustix::process::geteuid();
        if own.as_raw() != uid {
            fchown(&sockets, Some(own), Some(Gid::from_raw(uid)))?;
        }
        // What changes its group may take bits away.
        fchmod(&sockets, Mode::from_raw_mode(0o750))?;
        Ok(())
    }

    /// Lets the container's user reach a socket, where that is not our own.
    ///
    /// # Errors
    /// What the system says.
    pub fn give(&self, socket: &Path, uid: u32) -> io::Result<()> {
        if std::fs::symlink_metadata(socket)?.uid() == uid {
            return Ok(());
        }
        lchown(socket, Some(uid), Some(uid))
    }

    /// Containers that have a directory here, and by what they were made.
    ///
    /// # Errors
    /// What the system says.
    pub fn containers(&self) -> io::Result<Vec<(ContainerId, Terms)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.path.join("containers"))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                // One whose maker was killed before it wrote them is of nobody, and removed.
                let terms = std::fs::read(entry.path().join("terms")).ok();
                let terms = terms.and_then(|terms| serde_json::from_slice(&terms).ok());
                found.push((ContainerId(number), terms.unwrap_or_default()));
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

    /// Removes all that stands here, if no container is left that has something of it; the directory itself stays, which may
    /// be somebody's. It is the last thing that an orchestrator does.
    pub fn clear(&self) {
        let containers = self.path.join(PARTS[0]);
        if std::fs::remove_dir(&containers).is_err() {
            return;
        }
        let say = |what: &Path, removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("cannot remove {}: {error}", what.display());
            }
            _ => {}
        };
        for part in &PARTS[1..] {
            let part = self.path.join(part);
            say(&part, std::fs::remove_dir_all(&part));
        }
        // Who waits for the lock sees that it is another file's then.
        for file in ["replaced.new", "replaced", WORKS, "lock"] {
            let file = self.path.join(file);
            say(&file, std::fs::remove_file(&file));
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
        replace(&self.programs().join(name), bytes, mode)
    }
}

/// Writes a file that is there whole, or as it was.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&new, path)
}

/// How often programs were replaced, where that is lost: they may have been any number of times since a container was made,
/// but not once a second.
fn unlike_any_before() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Refuses a directory in which others could put programs for containers in place of ours.
fn check_owner(path: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let of = std::fs::metadata(path)?;
    if of.uid() == own && of.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = format!(
        "{} has owner {} and mode {:o}, so that others than user {own} could replace what containers run; have the \
         orchestrator make it, or give it that owner and mode 711",
        path.display(),
        of.uid(),
        of.mode() & 0o7777
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Who can open it can lock it, and no orchestrator would start.
fn open_lock(file: &Path) -> io::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(0o600).open(file)?;
    lock.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(lock)
}

/// Whether who has the lock is an orchestrator, and no command of one that has ended.
fn one_works(path: &Path) -> bool {
    let Ok(works) = std::fs::File::open(path.join(WORKS)) else { return false };
    flock(&works, FlockOperation::NonBlockingLockShared).is_err()
}

/// Waits so long for one that works, and for commands of one that has ended. Its file goes with who had it, and another one's
/// may be there by then.
fn wait_for_lock(path: &Path, works: Duration, commands: Duration) -> io::Result<std::fs::File> {
    let begun = Instant::now();
    let file = path.join("lock");
    let which = |file: std::fs::Metadata| (file.dev(), file.ino());
    loop {
        let lock = open_lock(&file)?;
        let is_locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_locked && std::fs::metadata(&file).ok().map(which) == Some(which(lock.metadata()?)) {
            return Ok(lock);
        }
        let waited = begun.elapsed();
        let at = path.display();
        let what = match one_works(path) {
            true => (waited > works).then(|| format!("another orchestrator works in {at}")),
            false => (waited > commands).then(|| {
                format!(
                    "a command of the runtime that an orchestrator in {at} gave, which has ended, is not done after {} s; \
                     end it",
                    commands.as_secs()
                )
            }),
        };
        if let Some(what) = what {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests;
