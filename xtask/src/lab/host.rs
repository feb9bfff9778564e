//! What the lab needs of the machine that it runs on. What is missing is named with the way to get it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::StatVfsMountFlags;

/// A program and the Debian package that has it.
pub type Tool<'a> = (&'a str, &'a str);

/// To fetch and unpack packages.
pub const PACKAGES: &[Tool] =
    &[("apt-get", "apt"), ("apt-cache", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar")];

/// To build User Mode Linux.
pub const BUILD: &[Tool] = &[
    ("gcc", "gcc"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("patch", "patch"),
    ("xz", "xz-utils"),
    ("perl", "perl"),
];

pub const QEMU: &[Tool] = &[("qemu-system-x86_64", "qemu-system-x86")];
pub const MODULES: &[Tool] = &[("depmod", "kmod"), ("modprobe", "kmod")];
pub const TAP: &[Tool] = &[("unshare", "util-linux"), ("ip", "iproute2")];

/// Fails with the command that installs what is missing.
pub fn need(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&Tool> = tools.iter().filter(|(name, _)| find(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    bail!(
        "this machine has no {}; get it with: apt-get install --no-install-recommends {}",
        names.join(", "),
        packages.join(" ")
    )
}

/// A program's path. The directories of administration are searched too: users' PATH often lacks them.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|path| {
            path.metadata()
                .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        })
}

/// Like `Command::new`, but finds the programs of administration too.
pub fn command(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| name.into()))
}

/// Runs a command to its end; its output, or an error that quotes what it said.
pub fn output(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output)
}

/// What a command writes, as text.
pub fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?.stdout).into_owned())
}

/// A directory for the memory of User Mode Linux: it is a mapped file, and processes run code from it.
pub fn memory_directory() -> Result<PathBuf> {
    if let Some(own) = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|own| executable(own)) {
        return Ok(own);
    }
    let usual = ["/dev/shm", "/tmp", "/run"].map(PathBuf::from);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let found = usual.into_iter().chain(runtime).find(|path| is_tmpfs(path) && executable(path));
    found.context(
        "User Mode Linux needs a writable tmpfs that is not mounted noexec, and neither /dev/shm nor /tmp is one; \
         get one with: mount -o remount,exec /dev/shm (in Docker: --tmpfs /dev/shm:exec,size=2g), or set TMPDIR",
    )
}

fn executable(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|stat| !stat.f_flag.contains(StatVfsMountFlags::NOEXEC))
        && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn is_tmpfs(path: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type as u64 == TMPFS_MAGIC)
}

/// The processors that this process may use.
pub fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// A text file, or an error that names it.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        need(&[("sh", "dash")]).unwrap();
        let error = need(&[("sh", "dash"), ("no-such-tool", "some-package")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no-such-tool") && text.ends_with("some-package"), "{text}");
    }

    #[test]
    fn a_failed_command_is_quoted() {
        let error =
            output(Command::new("sh").args(["-c", "echo because >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("because"), "{error}");
    }
}
