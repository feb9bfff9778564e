//! User Mode Linux: a kernel that is a program. Built once from Debian's source; a guest then boots in half a second.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cache::Cache;
use super::config::{self, Engine};
use super::devices::{Devices, Network};
use super::host::{self, read};
use super::packages::{self, Source};
use super::progress::Step;

/// To be raised when this file makes something else of the same inputs.
const RECIPE: &str = "1";

/// What a kernel for User Mode Linux does not need of its source: two thirds of the unpacking.
const LEFT_OUT: [&str; 4] =
    ["*/drivers/gpu/*.[ch]", "*/sound/*.[ch]", "*/Documentation/*.rst", "*/tools/testing"];

/// The kernel's path, built if it is not there.
pub fn build(cache: &Cache, engine: &Engine) -> Result<PathBuf> {
    let lab = config::directory().join("uml");
    let wanted = read(&lab.join("config"))?;
    let mut patches = Vec::new();
    for name in &engine.patches {
        patches.push(read(&lab.join("patches").join(name).with_extension("patch"))?);
    }
    let files = Source::host().resolve(cache, std::slice::from_ref(&engine.package))?;
    let inputs = [RECIPE, &files.join(" "), &wanted, &patches.join("\n")];
    let entry = cache.entry(&engine.name, &inputs, |entry| {
        host::need(host::BUILD)?;
        ensure!(
            Path::new("/usr/include/stdio.h").exists(),
            "this machine has no headers of the C library; get them with: apt-get install libc6-dev"
        );
        let source = unpack(cache, entry, &files)?;
        for (name, patch) in engine.patches.iter().zip(&patches) {
            apply(&source, name, patch)?;
        }
        configure(&source, &lab.join("config"), &wanted)?;
        compile(&source, entry)?;
        fs::copy(source.join("linux"), entry.join("linux")).context("the build made no linux")?;
        fs::copy(source.join(".config"), entry.join("config"))?;
        host::output(Command::new("strip").arg("-g").arg(entry.join("linux")))?;
        Ok(fs::remove_dir_all(entry.join("source"))?)
    })?;
    Ok(entry.join("linux"))
}

fn unpack(cache: &Cache, entry: &Path, files: &packages::Files) -> Result<PathBuf> {
    let package = Source::host().fetch(cache, files)?;
    let _step = Step::long("unpacking the kernel's source");
    let source = entry.join("source");
    for package in &package {
        packages::unpack(package, &source)?;
    }
    let archives = source.join("usr/src");
    let archive = fs::read_dir(&archives)
        .with_context(|| format!("{files:?} brings no usr/src"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".tar"))
        .with_context(|| format!("{files:?} brings no archive of a kernel's source"))?;
    let tree = source.join("tree");
    fs::create_dir_all(&tree)?;
    let left_out = LEFT_OUT.map(|pattern| format!("--exclude={pattern}"));
    let mut tar = host::command("tar");
    tar.args(left_out).arg("--strip-components=1").arg("-xf").arg(&archive).arg("-C").arg(&tree);
    host::output(&mut tar)?;
    fs::remove_file(archive)?;
    Ok(tree)
}

fn apply(source: &Path, name: &str, patch: &str) -> Result<()> {
    let path = source.join("lab.patch");
    fs::write(&path, patch)?;
    let mut command = host::command("patch");
    host::output(command.args(["-p1", "--batch", "-i"]).arg(&path).current_dir(source))
        .with_context(|| format!("lab/uml/patches/{name}.patch does not fit this source"))?;
    Ok(())
}

fn configure(source: &Path, fragment: &Path, wanted: &str) -> Result<()> {
    let mut make = host::command("make");
    make.args(["ARCH=um", "allnoconfig"]).current_dir(source).env("KCONFIG_ALLCONFIG", fragment);
    host::output(&mut make)?;
    let got = read(&source.join(".config"))?;
    let missing = not_taken(wanted, &got);
    ensure!(
        missing.is_empty(),
        "the kernel's configuration did not take these lines of {}: {}",
        fragment.display(),
        missing.join(" ")
    );
    Ok(())
}

/// The settings wanted that a configuration does not have: a misspelt one, or one whose dependencies are not met.
fn not_taken<'a>(wanted: &'a str, got: &str) -> Vec<&'a str> {
    let settings = wanted.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    settings.filter(|line| !got.lines().any(|other| other == *line)).collect()
}

/// Runs make, and tells how far it is. Its output stays in the cache when it fails.
fn compile(source: &Path, entry: &Path) -> Result<()> {
    let log = entry.with_extension("log");
    let jobs = host::processors().len().max(1);
    let mut step = Step::long(format!(
        "building {} (4 minutes on two cores)",
        entry.file_stem().unwrap_or_default().to_string_lossy()
    ));
    let mut make = host::command("nice");
    make.args(["-n", "10", "make", "ARCH=um", &format!("-j{jobs}"), "linux"])
        .current_dir(source)
        .stdin(Stdio::null())
        .stdout(File::create(&log)?)
        .stderr(File::options().append(true).open(&log)?);
    let mut make = make.spawn().context("cannot run make")?;
    let status = loop {
        if let Some(status) = make.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(500));
        let mut text = String::new();
        // Only for the reader's comfort.
        let _ = File::open(&log).and_then(|mut file| file.read_to_string(&mut text));
        let compiled = text.lines().filter(|line| line.starts_with("  CC ")).count();
        step.tick(&format!("{compiled} files compiled"));
    };
    if !status.success() {
        let text = read(&log)?;
        let errors: Vec<&str> = text.lines().filter(|line| line.contains("rror")).collect();
        anyhow::bail!(
            "make failed ({status}): {}\nall of its output: {}",
            errors.join("\n"),
            log.display()
        );
    }
    Ok(fs::remove_file(log)?)
}

/// The command that runs a guest. Descriptors that it names must be inherited.
pub fn command(
    kernel: &Path,
    userland: &Path,
    devices: &Devices,
    arguments: &str,
) -> Result<Command> {
    let mut command = Command::new(kernel);
    command
        // Its memory is a file there, from which it runs its processes.
        .env("TMPDIR", host::memory_directory()?)
        .arg(format!("mem={}M", devices.memory_mb))
        .arg(format!("initrd={}", userland.display()))
        .args(["con=null", "ssl=null", "quiet", "panic=-1", "rdinit=/init"])
        // What comes from the host's generator counts: there is no other source.
        .arg("rng_core.default_quality=1000");
    match &devices.lines {
        Some((output, control)) => {
            command.args(["con0=null,fd:1".into(), format!("ssl0=fd:{}", output.as_raw_fd())]);
            command.arg(format!("ssl1=fd:{}", control.as_raw_fd()));
        }
        None => drop(command.arg("con0=fd:0,fd:1")),
    }
    match &devices.network {
        Network::None => {}
        Network::Frames(fd) => {
            let mtu = devices.mtu;
            command.arg(format!("vec0:transport=fd,fd={},mtu={mtu}", fd.as_raw_fd()));
        }
        Network::Tap(name) => {
            command.arg(format!("vec0:transport=tap,ifname={name},mtu={}", devices.mtu));
        }
    }
    if let Some(share) = &devices.share {
        command.arg(format!("hostfs={}", share.display()));
    }
    command.args(arguments.split(' '));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_was_not_taken_is_found() {
        let wanted = "# why\nCONFIG_A=y\n\nCONFIG_B=4\n";
        assert_eq!(not_taken(wanted, "CONFIG_A=y\nCONFIG_B=4\n"), [""; 0]);
        assert_eq!(not_taken(wanted, "CONFIG_AA=y\nCONFIG_B=40\n"), ["CONFIG_A=y", "CONFIG_B=4"]);
    }
}
