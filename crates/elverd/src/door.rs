//! The sockets of the daemon in the file system.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use elver_node::NodeError;
use elver_node::config::{Config, capture_path, status_path};
use elver_portal::Listener;
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, getsockname, socket_with,
};
use rustix::process::umask;

/// Who may have a node record: the daemon's user alone, and root.
const CAPTURE_MODE: u32 = 0o600;

/// The daemon's sockets.
pub(crate) struct Door {
    listener: Listener,
    status: UnixListener,
    capture: UnixListener,
    paths: Paths,
}

/// Where they are. Dropping it removes the sockets that this daemon made.
pub(crate) struct Paths {
    socket: PathBuf,
    /// Held as long as the daemon lives: another one would take the sockets from it.
    _lock: File,
    /// The socket for processes was made, and not passed.
    is_made: bool,
    /// The socket for the status was made.
    has_status: bool,
    /// The socket for captures was.
    has_capture: bool,
}

impl Door {
    /// Takes the socket that was passed, or makes one.
    pub(crate) fn open(config: &Config, passed: Option<OwnedFd>) -> anyhow::Result<Door> {
        let mode = config.socket_mode()?;
        let (listener, mode, mut paths) = match passed {
            Some(fd) => take(fd, config, mode)?,
            None => {
                let (listener, paths) = bind(config.socket_path(), mode)?;
                (listener, mode, paths)
            }
        };
        let path = paths.status();
        let refused = |reason| NodeError::Socket { path: path.clone(), reason };
        remove(&path).map_err(refused)?;
        let status = for_those(mode, &path, || UnixListener::bind(&path)).map_err(refused)?;
        paths.has_status = true;
        let path = paths.capture();
        let refused = |reason| NodeError::Socket { path: path.clone(), reason };
        remove(&path).map_err(refused)?;
        // Whoever may use the node sees what he sends, and not what others do.
        let bind = || UnixListener::bind(&path);
        let capture = for_those(CAPTURE_MODE, &path, bind).map_err(refused)?;
        paths.has_capture = true;
        Ok(Door { listener, status, capture, paths })
    }

    /// The socket for processes, that for the status, and that for captures.
    pub(crate) fn split(self) -> (Listener, UnixListener, UnixListener, Paths) {
        (self.listener, self.status, self.capture, self.paths)
    }
}

impl Paths {
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn status(&self) -> PathBuf {
        status_path(&self.socket)
    }

    pub(crate) fn capture(&self) -> PathBuf {
        capture_path(&self.socket)
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        // Somebody may have tidied up already. The lock's file stays: to remove it would let two
        // daemons hold two files of its name.
        if self.is_made {
            let _ = fs::remove_file(&self.socket);
        }
        if self.has_status {
            let _ = fs::remove_file(self.status());
        }
        if self.has_capture {
            let _ = fs::remove_file(self.capture());
        }
    }
}

/// Takes the socket that was passed. It opens to whom both its maker and the configuration let in,
/// which is what the others are made with too.
fn take(fd: OwnedFd, config: &Config, mode: u32) -> Result<(Listener, u32, Paths), NodeError> {
    let name = getsockname(&fd).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let path = name
        .as_ref()
        .and_then(|name| name.path_bytes())
        .map(|bytes| PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
    let is_named = path.is_some();
    let socket = path.unwrap_or_else(|| config.socket_path());
    let refused = |reason| NodeError::Socket { path: socket.clone(), reason };
    let listener = Listener::from_fd(fd).map_err(refused)?;
    let lock = lock(&socket)?;
    let mut mode = mode;
    if is_named {
        let makers = fs::metadata(&socket).map_err(refused)?.mode() & 0o777;
        mode &= makers;
        if mode != makers {
            fs::set_permissions(&socket, Permissions::from_mode(mode)).map_err(|error| {
                let what = format!(
                    "it was passed with mode {makers:04o}, and `socket.mode` allows {mode:04o}, \
                     which cannot be set; start the daemon as its owner: {error}"
                );
                refused(io::Error::new(error.kind(), what))
            })?;
        }
    }
    let (is_made, has_status, has_capture) = (false, false, false);
    Ok((listener, mode, Paths { socket, _lock: lock, is_made, has_status, has_capture }))
}

/// Makes the socket. One that a dead daemon left is replaced, a living one's is not, nor one at which
/// systemd listens for a daemon that is to come.
fn bind(socket: PathBuf, mode: u32) -> Result<(Listener, Paths), NodeError> {
    let refused = |reason| NodeError::Socket { path: socket.clone(), reason };
    if let Some(directory) = socket.parent() {
        let is_here = directory.as_os_str().is_empty();
        let directory = if is_here { Path::new(".") } else { directory };
        directory_for_all(directory).map_err(refused)?;
    }
    let lock = lock(&socket)?;
    if is_listened_at(&socket) {
        return Err(NodeError::Taken { path: socket });
    }
    remove(&socket).map_err(refused)?;
    let listener = for_those(mode, &socket, || Listener::bind(&socket)).map_err(refused)?;
    let (is_made, has_status, has_capture) = (true, false, false);
    Ok((listener, Paths { socket, _lock: lock, is_made, has_status, has_capture }))
}

/// The lock beside a socket, which tells of a daemon that lives: it goes with its holder however that
/// ends.
fn lock(socket: &Path) -> Result<File, NodeError> {
    let refused = |reason| NodeError::Socket { path: socket.to_path_buf(), reason };
    let mut lock_path = socket.as_os_str().to_owned();
    lock_path.push(".lock");
    let mut options = OpenOptions::new();
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link);
    let lock = options.open(lock_path).map_err(refused)?;
    match flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(NodeError::Taken { path: socket.to_path_buf() }),
        Err(error) => Err(refused(error.into())),
    }
}

/// Whether somebody takes connections there.
fn is_listened_at(socket: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(probe) = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else {
        return false;
    };
    let Ok(address) = SocketAddrUnix::new(socket) else { return false };
    // Full, or of another kind: it listens all the same.
    matches!(connect(&probe, &address), Ok(()) | Err(Errno::WOULDBLOCK | Errno::PROTOTYPE))
}

/// Makes a socket that those may use whom `mode` says, and at no time others: what connects stays,
/// whatever the mode is later. No other thread makes files so early.
fn for_those<T>(mode: u32, path: &Path, bind: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let others = Mode::from_bits_truncate(!mode & 0o777);
    let before = umask(others);
    let made = bind();
    umask(before);
    let made = made?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(made)
}

/// Makes the directory if it is not there. Others must get through it to the socket, and must not
/// be able to put another in its place.
fn directory_for_all(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        // Whatever the umask: who starts a daemon for all has often a strict one.
        Ok(()) => return fs::set_permissions(directory, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let metadata = fs::metadata(directory)?;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    let ours = owner == rustix::process::geteuid().as_raw();
    // Others may write where only the owner of a file removes it, as in /tmp.
    if !(ours || owner == 0) || mode & 0o022 != 0 && mode & 0o1000 == 0 {
        let what = "others could put another socket in its place; \
                    choose a directory that only this user or root may write";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    // Somebody may have made it for root alone.
    if ours && directory == Path::new("/run/elver") && metadata.mode() & 0o055 != 0o055 {
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
