//! `cargo xtask preload`: the libraries for programs that know nothing of Elver, where `elver run` looks for them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{metadata, text};

/// Below the directory of the programs that are built for release: libibverbs, and what stands before sockets, and before
/// the host's own libibverbs; each of the latter as cargo names it, and as it is installed.
const LIBRARY: &str = "lib/elver/libibverbs.so.1";
const BEFORE: [[&str; 2]; 2] = [
    ["libelver_sockets.so", "lib/elver/libelver-sockets.so"],
    ["libelver_fastverbs.so", "lib/elver/libelver_fastverbs.so"],
];

/// Builds the archive, and links libibverbs from it: rustc's own shared objects carry no versions of
/// symbols. The other libraries need none.
pub(crate) fn run() -> Result<String> {
    let metadata = metadata(&["--no-deps"])?;
    let root = PathBuf::from(text(&metadata, "workspace_root")?);
    let release = Path::new(text(&metadata, "target_directory")?).join("release");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&root).args(["build", "--release", "--locked", "-p", "elver-preload"]);
    build.args(["-p", "elver-sockets", "-p", "elver-fastverbs"]);
    done(&mut build, "cargo build")?;
    let library = release.join(LIBRARY);
    let directory = library.parent().context("a file is in a directory")?;
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let mut link = Command::new(root.join("crates/elver-preload/link.sh"));
    link.arg(release.join("libelver_preload.a")).arg(&library);
    done(&mut link, "link.sh (it needs a C compiler)")?;
    let mut made = vec![library.display().to_string()];
    for [built, installed] in BEFORE {
        let installed = release.join(installed);
        // A new file: processes may have the old one mapped.
        let new = installed.with_extension("new");
        let copied = std::fs::copy(release.join(built), &new)
            .and_then(|_| std::fs::rename(&new, &installed));
        copied.with_context(|| format!("{}", installed.display()))?;
        made.push(installed.display().to_string());
    }
    Ok(made.join(", "))
}

fn done(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}
