//! What the orchestrator has in files: sockets, bundles, and which containers there are.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, fchmod, fchown, flock, open};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

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
        let directory =
            |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path);
        directory(path)?;
        let lock = wait_for_lock(path)?;
        for part in PARTS {
            directory(&path.join(part))?;
        }
        // Python lists where it imports from.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path.join("programs"), readable)?;
        // The runtime's commands keep it: what one of them was about when its orchestrator was killed is
        // done before another orchestrator looks.
        fcntl_setfd(&lock, FdFlags::empty())?;
        let mut state = StateDirectory { path: path.to_path_buf(), replaced: 0, _lock: lock };
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
        let before = std::fs::read_to_string(&count).ok().and_then(|text| text.parse().ok());
        let is_there = |(name, bytes, _): &(&str, Option<&[u8]>, u32)| {
            std::fs::read(self.programs().join(name)).ok().as_deref() == *bytes
        };
        match before {
            Some(before) if installed.iter().all(is_there) => Ok(before),
            _ => {
                let now = before.unwrap_or(0) + 1;
                std::fs::write(&count, now.to_string())?;
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
        for file in ["replaced", "lock"] {
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
        let path = self.programs().join(name);
        let new = path.with_extension("new");
        std::fs::write(&new, bytes)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&new, &path)
    }
}

/// Its file goes with who had it, and another one's may be there by then.
fn wait_for_lock(path: &Path) -> io::Result<std::fs::File> {
    let begun = Instant::now();
    let file = path.join("lock");
    let which = |file: std::fs::Metadata| (file.dev(), file.ino());
    loop {
        let mut options = OpenOptions::new();
        // Who can open it can lock it, and no orchestrator would start.
        let lock = options.write(true).create(true).truncate(false).mode(0o600).open(&file)?;
        lock.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        let is_locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_locked && std::fs::metadata(&file).ok().map(which) == Some(which(lock.metadata()?)) {
            return Ok(lock);
        }
        if begun.elapsed() > LOCK_MAX {
            let what = format!("another orchestrator works in {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(place: &Path) -> Programs<'_> {
        Programs { init: place, module: None }
    }

    #[test]
    fn nothing_is_left_but_what_a_container_has() {
        let place = tempfile::tempdir().unwrap();
        let (state, init) = (place.path().join("state"), place.path().join("init"));
        std::fs::write(&init, "a program").unwrap();
        let left = || std::fs::read_dir(&state).unwrap().count();
        let directory = StateDirectory::open(&state, &programs(&init)).unwrap();
        directory
            .make(ContainerId(7), rustix::process::getuid().as_raw(), &Terms::default())
            .unwrap();
        directory.clear();
        assert!(directory.programs().join("elver-init").exists() && left() > 4);
        directory.remove(ContainerId(7));
        directory.clear();
        assert_eq!(left(), 0);
        drop(directory);
        StateDirectory::open(&state, &programs(&init)).unwrap();
    }

    /// Its owner could replace a socket by a link just before that was given to him.
    #[test]
    fn the_directory_of_sockets_is_our_own() {
        let place = tempfile::tempdir().unwrap();
        let (state, init) = (place.path().join("state"), place.path().join("init"));
        std::fs::write(&init, "a program").unwrap();
        let directory = StateDirectory::open(&state, &programs(&init)).unwrap();
        let own = rustix::process::geteuid();
        // Another user's, where we may make such containers.
        let uid = if own.is_root() { 61_080 } else { own.as_raw() };
        let (id, sockets) = (ContainerId(7), directory.sockets(ContainerId(7)));
        directory.make(id, uid, &Terms::default()).unwrap();
        let is_ours = || {
            let made = std::fs::metadata(&sockets).unwrap();
            assert_eq!((made.uid(), made.mode() & 0o7777), (own.as_raw(), 0o750));
        };
        is_ours();
        // As an earlier version left it, and its owner after that.
        lchown(&sockets, Some(uid), Some(uid)).unwrap();
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777)).unwrap();
        directory.show_sockets(id, uid).unwrap();
        is_ours();
        std::os::unix::fs::symlink(&init, sockets.join("api-1.sock")).unwrap();
        directory.give(&sockets.join("api-1.sock"), uid).unwrap();
        assert_eq!(std::fs::metadata(&init).unwrap().uid(), own.as_raw());
    }

    /// Any user of the host could lock it, and no orchestrator started.
    #[test]
    fn the_lock_is_nobody_elses_to_open() {
        let place = tempfile::tempdir().unwrap();
        let lock = place.path().join("lock");
        let mode = || std::fs::metadata(&lock).unwrap().mode() & 0o7777;
        drop(wait_for_lock(place.path()).unwrap());
        assert_eq!(mode(), 0o600);
        // An earlier version's.
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(wait_for_lock(place.path()).unwrap());
        assert_eq!(mode(), 0o600);
    }

    /// Who has opened the file of a lock that goes with its owner has not the lock of the next one.
    #[test]
    fn a_lock_that_went_is_nobodys() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        let first = wait_for_lock(path).unwrap();
        let waits = std::thread::scope(|scope| {
            let second = scope.spawn(|| wait_for_lock(path).unwrap());
            std::fs::remove_file(path.join("lock")).unwrap();
            // The second one makes a file of its own, whether or not it had opened this one.
            second.join().unwrap()
        });
        drop(first);
        let named = std::fs::metadata(path.join("lock")).unwrap();
        assert_eq!(named.ino(), waits.metadata().unwrap().ino());
        let other = std::fs::File::open(path.join("lock")).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
    }
}
