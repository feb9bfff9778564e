use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Config;

/// The environment variable that says where the daemon's socket is, to the daemon and to processes.
pub const SOCKET_VARIABLE: &str = "ELVER_SOCKET";

/// Where the socket is if nothing else is said: `/run/elver/elverd.sock` for root, else below the
/// user's runtime directory, or, without one, below `/tmp`.
pub fn default_socket() -> PathBuf {
    let uid = rustix::process::geteuid();
    socket_of(uid.as_raw(), std::env::var_os("XDG_RUNTIME_DIR"))
}

/// What says where the socket is.
pub(crate) fn socket_option() -> &'static str {
    let is_set = std::env::var_os(SOCKET_VARIABLE).is_some_and(|path| !path.is_empty());
    if is_set { SOCKET_VARIABLE } else { "socket.path" }
}

/// The socket over which the daemon tells its status, beside the one for processes.
pub fn status_path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".status");
    PathBuf::from(path)
}

/// The socket over which the node's own user has it record what it sends and receives, likewise.
pub fn capture_path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".capture");
    PathBuf::from(path)
}

impl Config {
    /// Where the socket is: by the environment, by the configuration, or by default.
    pub fn socket_path(&self) -> PathBuf {
        match std::env::var_os(SOCKET_VARIABLE) {
            Some(path) if !path.is_empty() => PathBuf::from(path),
            _ if self.socket.path.as_os_str().is_empty() => default_socket(),
            _ => self.socket.path.clone(),
        }
    }
}

fn socket_of(uid: u32, runtime: Option<OsString>) -> PathBuf {
    if uid == 0 {
        return PathBuf::from("/run/elver/elverd.sock");
    }
    match runtime.map(PathBuf::from) {
        Some(base) if base.is_absolute() => base.join("elver/elverd.sock"),
        _ => PathBuf::from(format!("/tmp/elver-{uid}/elverd.sock")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_has_a_place() {
        let runtime = || Some(OsString::from("/run/user/1000"));
        assert_eq!(socket_of(0, runtime()), Path::new("/run/elver/elverd.sock"));
        assert_eq!(socket_of(1000, runtime()), Path::new("/run/user/1000/elver/elverd.sock"));
        assert_eq!(socket_of(1000, None), Path::new("/tmp/elver-1000/elverd.sock"));
        let relative = Some(OsString::from("run"));
        assert_eq!(socket_of(1000, relative), Path::new("/tmp/elver-1000/elverd.sock"));
    }

    #[test]
    fn the_status_socket_stands_beside() {
        assert_eq!(status_path(Path::new("/run/a.sock")), Path::new("/run/a.sock.status"));
    }
}
