//! The OCI bundle of a container: its `config.json`, and its root file system where that is the host's; and the same as
//! arguments of an engine.
//!
//! A container has no capability, a root file system that cannot be written, a network namespace of
//! its own with nothing but loopback, and runs as its owner's user. It reaches the node by the socket
//! in a directory that is mounted into it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde_json::{Value, json};

use crate::protocol::{CODE, PROGRAMS, SOCKETS};
use crate::seccomp;

/// Directories of a root file system that things are mounted on.
const MOUNT_POINTS: [&str; 9] =
    ["usr", "etc", "proc", "dev", "sys", "tmp", "run", "opt/elver", "var/task"];

/// Memory that is mounted: where, its mode, its size.
const TMPFS: [(&str, &str, &str); 3] =
    [("/tmp", "1777", "64m"), ("/run", "755", "64k"), (CODE, "755", "64k")];

/// The first process's environment.
const ENVIRONMENT: [&str; 3] = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8"];

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
    /// What has the node's socket, and where that is mounted.
    pub node: Option<(&'a Path, &'static str)>,
    /// Devices of the host's, which the container has at the same paths.
    pub devices: &'a [PathBuf],
    /// Functions' names and their code's directories.
    pub code: Vec<(&'a str, &'a Path)>,
    /// The image that an engine takes instead of a root file system.
    pub image: Option<&'a str>,
    /// The host's user who is root in a user namespace of the container's own; without it there is none.
    pub user_namespace: Option<u32>,
    /// Most processes and threads of the user.
    pub processes_max: u64,
    /// Most bytes of memory that its cgroup may have; without it, none is asked for.
    pub memory_max: Option<u64>,
    /// Most bytes that a file in the container may have.
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
        let devices =
            self.devices.iter().map(|path| device(path)).collect::<io::Result<Vec<_>>>()?;
        let spec = serde_json::to_vec_pretty(&self.spec(&rootfs, &devices))?;
        let mut options = OpenOptions::new();
        // It names where the functions' code is; the runtime, which reads it, is ours.
        options.write(true).create_new(true).mode(0o600);
        options.open(self.directory.join("config.json"))?.write_all(&spec)
    }

    /// An empty tree into which the host's `/usr` is mounted, with the links that a merged `/usr` has.
    ///
    /// # Errors
    /// What the system says of the directory.
    pub fn host_rootfs(&self) -> io::Result<PathBuf> {
        let root = self.directory.join("rootfs");
        for directory in MOUNT_POINTS {
            std::fs::create_dir_all(root.join(directory))?;
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            if Path::new("/usr").join(link).exists() {
                symlink(Path::new("usr").join(link), root.join(link))?;
            }
        }
        // podman gives what it mounts there the mode of the place, whatever mode it is told.
        std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))?;
        let passwd = format!("owner:x:{0}:{0}::/tmp:/usr/sbin/nologin\n", self.uid);
        std::fs::write(root.join("etc/passwd"), passwd)?;
        Ok(root)
    }

    /// What a container runs first.
    pub fn program(&self) -> String {
        format!("{PROGRAMS}/elver-init")
    }

    /// Limits of each process, with the words that engines have for them.
    fn limits(&self) -> [(&'static str, u64); 4] {
        [("nproc", self.processes_max), ("nofile", 1024), ("fsize", self.file_max), ("core", 0)]
    }

    /// The same container for `podman run` and `docker run`, without its root and its program.
    pub fn engine_arguments(&self) -> Vec<String> {
        let uid = self.uid;
        let mut arguments = vec![
            "--network=none".into(),
            "--read-only".into(),
            format!("--user={uid}:{uid}"),
            "--cap-drop=ALL".into(),
            "--security-opt=no-new-privileges".into(),
            "--hostname=function".into(),
            "--workdir=/".into(),
            "--entrypoint=".into(),
        ];
        arguments.extend(ENVIRONMENT.map(|variable| format!("--env={variable}")));
        arguments
            .extend(self.limits().map(|(name, most)| format!("--ulimit={name}={most}:{most}")));
        if let Some(memory) = self.memory_max {
            arguments.push(format!("--memory={memory}b"));
            arguments.push(format!("--pids-limit={}", self.processes_max));
        }
        if let Some(root) = self.user_namespace {
            for map in ["uidmap", "gidmap"] {
                arguments.push(format!("--{map}=0:{root}:1"));
                arguments.push(format!("--{map}={uid}:{uid}:1"));
            }
        }
        for path in self.devices {
            arguments.push(format!("--device={}", path.display()));
        }
        for (at, mode, size) in TMPFS {
            arguments.push(format!("--tmpfs={at}:nosuid,nodev,mode={mode},size={size}"));
        }
        for (from, at) in self.binds() {
            arguments
                .push(format!("--mount=type=bind,source={},target={at},readonly", from.display()));
        }
        arguments
    }

    fn spec(&self, rootfs: &Path, devices: &[Value]) -> Value {
        let nothing: [&str; 0] = [];
        let limit = |name: &str, most: u64| json!({"type": format!("RLIMIT_{}", name.to_uppercase()), "hard": most, "soft": most});
        let mut spec = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": self.uid, "gid": self.uid},
                "args": [self.program()],
                "env": ENVIRONMENT,
                "cwd": "/",
                "capabilities": {
                    "bounding": nothing, "effective": nothing, "inheritable": nothing,
                    "permitted": nothing, "ambient": nothing,
                },
                "rlimits": self.limits().map(|(name, most)| limit(name, most)),
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
                "devices": devices,
                "seccomp": seccomp::list(),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                    "/proc/sched_debug", "/proc/scsi", "/proc/acpi"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        });
        if let Some(memory) = self.memory_max {
            let mut resources =
                json!({"memory": {"limit": memory}, "pids": {"limit": self.processes_max}});
            if !devices.is_empty() {
                let allowed = devices.iter().map(|device| {
                    let (major, minor) = (&device["major"], &device["minor"]);
                    json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"})
                });
                resources["devices"] = allowed.collect();
            }
            spec["linux"]["resources"] = resources;
        }
        if let Some(root) = self.user_namespace {
            // The owner's user is the same one within, so that what is his on the host is his there.
            let map =
                |inside: u32, host: u32| json!({"containerID": inside, "hostID": host, "size": 1});
            let maps = json!([map(0, root), map(self.uid, self.uid)]);
            let linux = &mut spec["linux"];
            linux["uidMappings"] = maps.clone();
            linux["gidMappings"] = maps;
            if let Some(namespaces) = linux["namespaces"].as_array_mut() {
                namespaces.push(json!({"type": "user"}));
            }
        }
        spec
    }

    /// What of the host's is mounted, read-only.
    fn binds(&self) -> Vec<(&Path, String)> {
        let mut binds = vec![(self.sockets, SOCKETS.into()), (self.programs, PROGRAMS.into())];
        if self.rootfs.is_none() && self.image.is_none() {
            binds.push((Path::new("/usr"), "/usr".into()));
        }
        binds.extend(self.node.map(|(from, at)| (from, at.into())));
        binds.extend(self.code.iter().map(|(name, code)| (*code, format!("{CODE}/{name}"))));
        binds
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
        ];
        for (at, mode, size) in TMPFS {
            let (mode, size) = (format!("mode={mode}"), format!("size={size}"));
            mounts.push(of_kernel("tmpfs", at, &["nosuid", "nodev", &mode, &size]));
        }
        mounts.extend(self.binds().iter().map(|(from, at)| bind(from, at)));
        mounts
    }
}

/// A device of the host's as a container has it.
fn device(path: &Path) -> io::Result<Value> {
    let refused = |error: io::Error| {
        io::Error::new(error.kind(), format!("platform.devices: {}: {error}", path.display()))
    };
    let found = std::fs::metadata(path).map_err(refused)?;
    if !found.file_type().is_char_device() {
        let what = io::Error::new(io::ErrorKind::InvalidInput, "it is no character device");
        return Err(refused(what));
    }
    let number = found.rdev();
    Ok(json!({
        "type": "c", "path": path, "major": major(number), "minor": minor(number),
        "fileMode": found.mode() & 0o777, "uid": found.uid(), "gid": found.gid(),
    }))
}
