//! The guests' programs, as the first root file system that both kinds of kernel unpack.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::archive::Archive;
use super::cache::Cache;
use super::config::{self, Config};
use super::host::{self, read};
use super::packages::{self, Source};
use super::progress::Step;

const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const PROGRAMS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];

/// What no program names, and the C library looks for when a thread ends itself (`pthread_exit`), as rping's do.
const UNWINDER: &str = "libgcc_s.so.1";

/// To be raised when this file makes something else of the same inputs.
const RECIPE: &str = "2";

/// The archive, built if it is not there.
pub fn build(cache: &Cache, config: &Config) -> Result<PathBuf> {
    let files = Source::host().resolve_with_libraries(cache, &config.packages)?;
    let guest = config::directory().join("guest");
    let init = read(&guest.join("init"))?;
    let library = read(&guest.join("lib.sh"))?;
    let modules = config.modules.join("\n");
    let inputs = [
        RECIPE,
        &files.join(" "),
        &config.programs.join(" "),
        &config.providers.join(" "),
        &modules,
        &init,
        &library,
    ];
    let entry = cache.entry("userland", &inputs, |entry| {
        let paths = Source::host().fetch(cache, &files)?;
        let _step = Step::long("packing the guests' programs");
        let root = entry.join("root");
        for path in &paths {
            packages::unpack(path, &root)?;
        }
        let to = BufWriter::new(File::create(entry.join("userland.cpio"))?);
        let mut archive = Archive::new(to);
        lay_out(&mut archive)?;
        archive.file("init", 0o755, init.as_bytes())?;
        archive.file("lab/lib.sh", 0o644, library.as_bytes())?;
        archive.file("etc/lab-modules", 0o644, modules.as_bytes())?;
        add_programs(&mut archive, config, &Tree { root: root.clone() })?;
        archive.finish()?;
        fs::remove_dir_all(&root)?;
        Ok(())
    })?;
    Ok(entry.join("userland.cpio"))
}

type To<'a> = &'a mut Archive<BufWriter<File>>;

/// Directories, the symbolic links of a merged /usr, the files that programs ask for.
fn lay_out(archive: To) -> Result<()> {
    for directory in
        ["dev", "etc", "job", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "usr/lib"]
    {
        archive.directory(directory)?;
    }
    for directory in ["bin", "sbin", "lib", "lib64"] {
        archive.symlink(directory, &format!("usr/{directory}"))?;
    }
    archive.character_device("dev/console", 0o600, (5, 1))?;
    archive.character_device("dev/null", 0o666, (1, 3))?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/bash\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")?;
    archive.file("etc/nsswitch.conf", 0o644, b"hosts: files\n")
}

fn add_programs(archive: To, config: &Config, tree: &Tree) -> Result<()> {
    let mut libraries = BTreeSet::new();
    let mut names: BTreeSet<String> = config.programs.iter().cloned().collect();
    for program in &config.programs {
        let path = tree.program(program)?;
        libraries.extend(tree.libraries(&path)?);
        archive.copy(&format!("usr/bin/{program}"), &path)?;
    }
    for alias in ["depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod"] {
        archive.symlink(&format!("usr/bin/{alias}"), "kmod")?;
        names.insert(alias.to_owned());
    }
    for provider in &config.providers {
        let path = tree.provider(provider)?;
        libraries.extend(tree.libraries(&path)?);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&format!("usr/lib/x86_64-linux-gnu/libibverbs/{name}"), &path)?;
        let driver = format!("etc/libibverbs.d/{provider}.driver");
        archive.copy(&driver, &tree.root.join(&driver))?;
    }
    libraries.insert(tree.library(UNWINDER)?);
    for library in &libraries {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&format!("usr/lib/x86_64-linux-gnu/{name}"), library)?;
    }
    archive.copy(&format!("usr/{LOADER}"), &tree.root.join(LOADER))?;

    // Everything else that a script may want; real programs come before busybox's.
    let busybox = tree.program("busybox")?;
    archive.copy("usr/bin/busybox", &busybox)?;
    names.insert("busybox".to_owned());
    for applet in host::text(std::process::Command::new(&busybox).arg("--list"))?.lines() {
        if !names.contains(applet) {
            archive.symlink(&format!("usr/bin/{applet}"), "busybox")?;
        }
    }
    Ok(())
}

/// The unpacked packages.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn program(&self, name: &str) -> Result<PathBuf> {
        let places = PROGRAMS.map(|place| self.root.join(place).join(name));
        places
            .into_iter()
            .find(|path| path.is_file())
            .with_context(|| format!("none of the packages in lab/lab.toml has a program {name:?}"))
    }

    fn library(&self, name: &str) -> Result<PathBuf> {
        let places = LIBRARIES.map(|place| self.root.join(place).join(name));
        places
            .into_iter()
            .find(|path| path.is_file())
            .with_context(|| format!("none of the packages in lab/lab.toml has a library {name:?}"))
    }

    fn provider(&self, name: &str) -> Result<PathBuf> {
        for place in LIBRARIES {
            let Ok(entries) = fs::read_dir(self.root.join(place).join("libibverbs")) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                let file = entry.file_name().to_string_lossy().into_owned();
                if file.starts_with(&format!("lib{name}-rdmav")) && file.ends_with(".so") {
                    return Ok(entry.path());
                }
            }
        }
        anyhow::bail!("none of the packages in lab/lab.toml has a provider of libibverbs {name:?}")
    }

    /// What the dynamic loader of the tree itself would load for a program.
    fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let paths = LIBRARIES.map(|place| self.root.join(place).display().to_string());
        let listed = host::text(
            std::process::Command::new(self.root.join(LOADER))
                .args(["--library-path", &paths.join(":"), "--list"])
                .arg(program),
        )?;
        ensure!(
            !listed.contains("not found"),
            "{} needs libraries that none of the packages in lab/lab.toml brings: {listed}",
            program.display()
        );
        parse_loader_list(&listed)
            .into_iter()
            .filter(|path| !path.ends_with(LOADER))
            .map(|path| {
                ensure!(
                    path.starts_with(&self.root),
                    "{} needs {}, which none of the packages in lab/lab.toml brings",
                    program.display(),
                    path.display()
                );
                Ok(path)
            })
            .collect()
    }
}

/// The paths in the output of `ld.so --list` or ldd: lines such as `libc.so.6 => /lib/libc.so.6 (0x7f…)`.
pub fn parse_loader_list(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let target = line.split_once(" => ").map_or(line, |(_, target)| target).trim();
            let path = target.rsplit_once(" (").map_or(target, |(path, _)| path);
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse_loader_list(text), paths.map(PathBuf::from));
    }
}
