//! `cargo xtask preload`: libibverbs for programs that know nothing of Elver, where `elver run` looks for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{metadata, text};

/// Below the directory of the programs that are built for release.
const LIBRARY: &str = "lib/elver/libibverbs.so.1";

/// Builds the archive, and links the library from it: rustc's own shared objects carry no versions of
/// symbols.
pub(crate) fn run() -> Result<String> {
    let metadata = metadata(&["--no-deps"])?;
    let root = PathBuf::from(text(&metadata, "workspace_root")?);
    let release = Path::new(text(&metadata, "target_directory")?).join("release");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&root).args(["build", "--release", "--locked", "-p", "elver-preload"]);
    done(&mut build, "cargo build")?;
    let library = release.join(LIBRARY);
    let directory = library.parent().context("a file is in a directory")?;
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let mut link = Command::new(root.join("crates/elver-preload/link.sh"));
    link.arg(release.join("libelver_preload.a")).arg(&library);
    done(&mut link, "link.sh (it needs a C compiler)")?;
    Ok(library.display().to_string())
}

fn done(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
