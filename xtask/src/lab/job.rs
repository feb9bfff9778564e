//! The directory that a guest sees as /job: the scenario's files, programs with their libraries, and
//! `out`, for what the guest leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cache::fresh_directory;
use super::progress::Step;
use super::scenario::Scenario;
use super::{host, userland};

/// Libraries that a program finds in the guest: those of the guest's own providers and kernel.
const GUESTS_OWN: [&str; 5] = ["libibverbs.", "librdmacm.", "libibumad.", "libmlx", "libefa."];

/// Builds what the scenario asks for, and returns where it is.
pub fn binaries(scenario: &Scenario, root: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for binary in &scenario.binaries {
        let path =
            if binary.contains('/') { root.join(binary) } else { cargo_build(binary, root)? };
        ensure!(path.is_file(), "{}: no file {}", scenario.name, path.display());
        paths.push(path);
    }
    Ok(paths)
}

/// Builds a binary of the workspace for release.
pub fn cargo_build(binary: &str, root: &Path) -> Result<PathBuf> {
    let _step = Step::long(format!("cargo build --release --bin {binary}"));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet", "--message-format", "json-render-diagnostics"]);
    let text = host::text(command.args(["--bin", binary]).current_dir(root))?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == binary)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no executable {binary:?}"))
}

/// Makes a guest's directory.
pub fn make(
    directory: &Path,
    scenario: &Scenario,
    binaries: &[PathBuf],
    environment: &BTreeMap<String, String>,
) -> Result<()> {
    fresh_directory(directory)?;
    fs::create_dir(directory.join("out"))?;
    for entry in fs::read_dir(scenario.directory())? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, directory.join(name))?;
        }
    }
    let lines = environment.iter().map(|(name, value)| format!("export {name}='{value}'\n"));
    fs::write(directory.join("environment"), lines.collect::<String>())?;
    fs::create_dir(directory.join("bin"))?;
    for binary in binaries {
        add_program(directory, binary)?;
    }
    Ok(())
}

/// Copies a program and what ldd names. It runs under the loader that it was linked for, because the guest's C library
/// may be older than the host's.
fn add_program(directory: &Path, program: &Path) -> Result<()> {
    let name = program.file_name().unwrap_or_default();
    let bin = directory.join("bin").join(name);
    let ldd = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let listed = String::from_utf8_lossy(&ldd.stdout).into_owned();
    ensure!(
        !listed.contains("not found"),
        "{} needs libraries that are not there: {listed}",
        program.display()
    );
    let libraries: BTreeSet<PathBuf> =
        userland::parse_loader_list(&listed).into_iter().filter(|path| !is_guests(path)).collect();
    let loader = libraries.iter().find_map(|path| {
        let name = path.file_name()?.to_string_lossy();
        name.starts_with("ld-linux").then(|| name.into_owned())
    });
    // ldd fails for scripts and static programs: they run as they are.
    let Some(loader) = loader.filter(|_| ldd.status.success()) else {
        return fs::copy(program, &bin)
            .map(drop)
            .with_context(|| format!("cannot copy {}", program.display()));
    };
    let lib = directory.join("lib");
    fs::create_dir_all(&lib)?;
    for library in &libraries {
        fs::copy(library, lib.join(library.file_name().unwrap_or_default()))
            .with_context(|| format!("cannot copy {}", library.display()))?;
    }
    let real = directory.join("programs");
    fs::create_dir_all(&real)?;
    fs::copy(program, real.join(name))
        .with_context(|| format!("cannot copy {}", program.display()))?;
    let name = name.to_string_lossy();
    let script = format!(
        "#!/bin/bash\nexec /job/lib/{loader} --library-path \
         \"${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}/job/lib:/usr/lib/x86_64-linux-gnu\" /job/programs/{name} \"$@\"\n"
    );
    fs::write(&bin, script)?;
    Ok(fs::set_permissions(&bin, fs::Permissions::from_mode(0o755))?)
}

fn is_guests(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    GUESTS_OWN.iter().any(|own| name.starts_with(own))
}

/// The files that a guest left, relative to the run's directory.
pub fn left_behind(run: &Path, guest: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![guest.join("out")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                found.push(path.strip_prefix(run).unwrap_or(&path).display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_own_libraries_stay_at_home() {
        assert!(is_guests(Path::new("/lib/libibverbs.so.1")));
        assert!(!is_guests(Path::new("/lib/libc.so.6")));
    }
}
