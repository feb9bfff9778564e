//! The OCI bundle of a container: its `config.json`, and its root file system where that is the host's.
//!
//! A container has no capability, a root file system that cannot be written, a network namespace of
//! its own with nothing but loopback, and runs as its owner's user. It reaches the node by the socket
//! that is mounted into it.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::protocol::{CODE, NODE_SOCKET, PROGRAMS, SOCKETS};

/// Directories of a root file system that things are mounted on.
const MOUNT_POINTS: [&str; 9] =
    ["usr", "etc", "proc", "dev", "sys", "tmp", "run", "opt/elver", "var/task"];

/// What is made into a bundle.
#[derive(Debug)]
pub struct Bundle<'a> {
    /// Its directory, which is there.
    pub directory: &'a Path,
    /// The root file system; without it the host's `/usr`.
    pub rootfs: Option<&'a Path>,
    /// The user to run as.
    pub uid: u32,
    /// The host's directory of this container's sockets.
    pub sockets: &'a Path,
    /// The host's directory with `elver-init` and what runtimes need.
    pub programs: &'a Path,
    /// The node's socket, which need not be there.
    pub node_socket: Option<&'a Path>,
    /// Functions' names and their code's directories.
    pub code: Vec<(&'a str, &'a Path)>,
    /// Most processes and threads of the user.
    pub processes_max: u64,
    /// Most bytes that a file in the container, and its log, may have.
    pub file_max: u64,
}

impl Bundle<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// What the system says of the directory.
    pub fn write(&self) -> io::Result<()> {
        let rootfs = match self.rootfs {
            Some(rootfs) => rootfs.to_path_buf(),
            None => self.host_rootfs()?,
        };
        let spec = serde_json::to_vec_pretty(&self.spec(&rootfs))?;
        std::fs::write(self.directory.join("config.json"), spec)
    }

    /// An empty tree into which the host's `/usr` is mounted, with the links that a merged `/usr` has.
    fn host_rootfs(&self) -> io::Result<PathBuf> {
        let root = self.directory.join("rootfs");
        for directory in MOUNT_POINTS {
            std::fs::create_dir_all(root.join(directory))?;
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            if Path::new("/usr").join(link).exists() {
                symlink(Path::new("usr").join(link), root.join(link))?;
            }
        }
        let passwd = format!("owner:x:{0}:{0}::/tmp:/usr/sbin/nologin\n", self.uid);
        std::fs::write(root.join("etc/passwd"), passwd)?;
        Ok(root)
    }

    fn spec(&self, rootfs: &Path) -> Value {
        let nothing: [&str; 0] = [];
        let limit = |name: &str, most: u64| json!({"type": name, "hard": most, "soft": most});
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": self.uid, "gid": self.uid},
                "args": [format!("{PROGRAMS}/elver-init")],
                "env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"],
                "cwd": "/",
                "capabilities": {
                    "bounding": nothing, "effective": nothing, "inheritable": nothing,
                    "permitted": nothing, "ambient": nothing,
                },
                "rlimits": [
                    limit("RLIMIT_NPROC", self.processes_max),
                    limit("RLIMIT_NOFILE", 1024),
                    limit("RLIMIT_FSIZE", self.file_max),
                    limit("RLIMIT_CORE", 0),
                ],
                "noNewPrivileges": true,
            },
            "root": {"path": rootfs, "readonly": true},
            "hostname": "function",
            "mounts": self.mounts(),
            "linux": {
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
                    {"type": "network"},
                ],
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                    "/proc/sched_debug", "/proc/scsi", "/proc/acpi"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        })
    }

    fn mounts(&self) -> Vec<Value> {
        let of_kernel = |kind: &str, at: &str, options: &[&str]| json!({"type": kind, "source": kind, "destination": at, "options": options});
        let bind = |from: &Path, at: &str| {
            let options = ["rbind", "ro", "nosuid", "nodev"];
            json!({"type": "bind", "source": from, "destination": at, "options": options})
        };
        let mut mounts = vec![
            of_kernel("proc", "/proc", &["nosuid", "nodev", "noexec"]),
            of_kernel("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=64k"]),
            of_kernel("tmpfs", "/dev/shm", &["nosuid", "nodev", "noexec", "mode=1777", "size=64m"]),
            of_kernel("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777", "size=64m"]),
            of_kernel("tmpfs", "/run", &["nosuid", "nodev", "noexec", "mode=755", "size=64k"]),
            of_kernel("tmpfs", CODE, &["nosuid", "nodev", "mode=755", "size=64k"]),
            bind(self.sockets, SOCKETS),
            bind(self.programs, PROGRAMS),
        ];
        if self.rootfs.is_none() {
            mounts.push(bind(Path::new("/usr"), "/usr"));
        }
        if let Some(socket) = self.node_socket {
            mounts.push(bind(socket, NODE_SOCKET));
        }
        for (name, code) in &self.code {
            mounts.push(bind(code, &format!("{CODE}/{name}")));
        }
        mounts
    }
}
