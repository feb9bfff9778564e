//! `cargo xtask preload`: the libraries for programs that know nothing of Elver, where `elver run` looks for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{metadata, text};

/// Below the directory of the programs that are built for release: libibverbs, and what stands before sockets.
const LIBRARY: &str = "lib/elver/libibverbs.so.1";
const SOCKETS: &str = "lib/elver/libelver-sockets.so";

/// Builds the archive, and links libibverbs from it: rustc's own shared objects carry no versions of
/// symbols. The other library needs none.
pub(crate) fn run() -> Result<String> {
    let metadata = metadata(&["--no-deps"])?;
    let root = PathBuf::from(text(&metadata, "workspace_root")?);
    let release = Path::new(text(&metadata, "target_directory")?).join("release");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&root).args(["build", "--release", "--locked", "-p", "elver-preload"]);
    build.args(["-p", "elver-sockets"]);
    done(&mut build, "cargo build")?;
    let library = release.join(LIBRARY);
    let directory = library.parent().context("a file is in a directory")?;
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let mut link = Command::new(root.join("crates/elver-preload/link.sh"));
    link.arg(release.join("libelver_preload.a")).arg(&library);
    done(&mut link, "link.sh (it needs a C compiler)")?;
    let sockets = release.join(SOCKETS);
    // A new file: processes may have the old one mapped.
    let new = sockets.with_extension("new");
    let copied = std::fs::copy(release.join("libelver_sockets.so"), &new)
        .and_then(|_| std::fs::rename(&new, &sockets));
    copied.with_context(|| format!("{}", sockets.display()))?;
    Ok(format!("{} and {}", library.display(), sockets.display()))
}

fn done(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
