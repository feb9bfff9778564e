//! An unmodified Debian kernel, emulated by qemu.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::Archive;
use super::cache::Cache;
use super::config::{Config, Engine};
use super::devices::{Devices, Network};
use super::packages::Source;
use super::progress::Step;
use super::{host, packages};

/// To be raised when this file makes something else of the same inputs.
const RECIPE: &str = "2";

/// Of a guest.
const PROCESSORS: usize = 2;

/// A kernel and the first root file system with its modules.
pub struct Stock {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// Unpacks the kernel if it is not there.
pub fn build(cache: &Cache, config: &Config, engine: &Engine, userland: &Path) -> Result<Stock> {
    let source = match &engine.suite {
        Some(suite) => Source::suite(cache, suite)?,
        None => Source::host(),
    };
    let files = source.resolve_kernel(cache, &engine.package)?;
    let modules: Vec<&str> = config.modules.iter().map(String::as_str).collect();
    let modules: Vec<&str> = modules
        .into_iter()
        .filter(|name| engine.without.iter().all(|lacks| lacks != name))
        .collect();
    let inputs = [RECIPE, &files.join(" "), &modules.join(" ")];
    let entry = cache.entry(&engine.name, &inputs, |entry| {
        host::need(host::MODULES)?;
        let packages = source.fetch(cache, &files)?;
        let _step = Step::long(format!("unpacking the kernel for {}", engine.name));
        let root = entry.join("root");
        for package in &packages {
            packages::unpack(package, &root)?;
        }
        unpack_kernel(&image(&root)?, &entry.join("vmlinux"))?;
        pack_modules(&root, &modules, &entry.join("modules.cpio"))?;
        Ok(fs::remove_dir_all(root)?)
    })?;
    // Both paths change with the content. The kernel unpacks one archive after the other.
    let (kernel, modules) = (entry.join("vmlinux"), entry.join("modules.cpio"));
    let inputs = [&userland.display().to_string(), &*modules.display().to_string()];
    let entry = cache.entry(&format!("{}-initrd", engine.name), &inputs, |entry| {
        let both = [fs::read(userland)?, fs::read(&modules)?].concat();
        Ok(fs::write(entry.join("initrd"), both)?)
    })?;
    Ok(Stock { kernel, initrd: entry.join("initrd") })
}

/// Where a kernel's packages have its image: from Linux 7 on Debian has it beside the modules.
fn image(root: &Path) -> Result<PathBuf> {
    let boot = root.join("boot");
    match boot.is_dir() {
        true => only_child(&boot, "vmlinuz-"),
        false => Ok(only_child(&modules_of(root)?, "")?.join("vmlinuz")),
    }
}

/// Where a kernel's packages have the modules of each release.
fn modules_of(root: &Path) -> Result<PathBuf> {
    let places = [root.join("lib/modules"), root.join("usr/lib/modules")];
    places.into_iter().find(|path| path.is_dir()).context("the kernel's packages have no modules")
}

/// Unpacks the ELF file that is in a kernel's image: qemu starts that too, and the kernel would take four emulated
/// seconds to unpack itself.
fn unpack_kernel(image: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload =
        payload(&bytes).with_context(|| format!("{} is no kernel image", image.display()))?;
    let (tool, package) = match payload {
        [0xfd, b'7', b'z', ..] => ("xz", "xz-utils"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", "zstd"),
        [0x1f, 0x8b, ..] => ("gzip", "gzip"),
        other => anyhow::bail!(
            "{} is compressed in a way that is not known here: it starts with {:02x?}",
            image.display(),
            &other[..other.len().min(4)]
        ),
    };
    host::need(&[(tool, package)])?;
    let packed = to.with_extension("packed");
    fs::write(&packed, payload)?;
    let mut command = host::command(tool);
    command.arg("-dc").stdin(File::open(&packed)?).stdout(File::create(to)?);
    let status = command.status().with_context(|| format!("cannot run {tool}"))?;
    anyhow::ensure!(status.success(), "{tool} cannot unpack {} ({status})", image.display());
    Ok(fs::remove_file(packed)?)
}

/// The compressed kernel in an x86 image; see Documentation/arch/x86/boot.rst of the kernel.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)? as usize;
    // It ends with its unpacked size, which is not the packer's.
    let size = (word(0x24c)? as usize).checked_sub(4)?;
    image.get(start..start.checked_add(size)?)
}

/// An archive with the modules and all that they depend on.
fn pack_modules(root: &Path, modules: &[&str], to: &Path) -> Result<()> {
    let directory = only_child(&modules_of(root)?, "")?;
    let release = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // modprobe looks for lib/modules.
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    }
    host::output(host::command("depmod").arg("-b").arg(root).arg(&release))?;

    let mut needed = BTreeMap::new();
    for module in modules {
        let mut modprobe = host::command("modprobe");
        modprobe.arg("-d").arg(root).args(["-S", &release, "--show-depends", module]);
        let text = host::text(&mut modprobe)
            .with_context(|| format!("the kernel has no module {module:?}; see lab/lab.toml"))?;
        for path in parse_show_depends(&text) {
            let inside = path
                .to_string_lossy()
                .split_once("/lib/modules/")
                .map(|(_, inside)| format!("usr/lib/modules/{inside}"))
                .with_context(|| format!("modprobe names the odd path {}", path.display()))?;
            needed.insert(inside, path);
        }
    }
    let mut archive = Archive::new(BufWriter::new(File::create(to)?));
    for (inside, path) in &needed {
        archive.copy(inside, path)?;
    }
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("modules.") && entry.path().is_file() {
            archive.copy(&format!("usr/lib/modules/{release}/{name}"), &entry.path())?;
        }
    }
    archive.finish()
}

/// The paths in lines such as `insmod /lib/modules/6.1/kernel/a.ko option=1`; what is built in has none.
fn parse_show_depends(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .filter_map(|rest| rest.split(' ').next())
        .map(PathBuf::from)
        .collect()
}

fn only_child(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .collect();
    match (found.pop(), found.pop()) {
        (Some(one), None) => Ok(one),
        (None, _) => anyhow::bail!("{} has no {prefix}*", directory.display()),
        (Some(_), Some(_)) => anyhow::bail!("{} has several {prefix}*", directory.display()),
    }
}

/// The command that runs a guest. Descriptors that it names must be inherited.
pub fn command(stock: &Stock, devices: &Devices, arguments: &str) -> Result<Command> {
    host::need(host::QEMU)?;
    let mut command = host::command("qemu-system-x86_64");
    command
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            &PROCESSORS.to_string(),
            "-nodefaults",
        ])
        .args(["-nographic", "-no-reboot"])
        // In a shell, the guest gets control-C and qemu control-A.
        .args(["-serial", if devices.lines.is_some() { "stdio" } else { "mon:stdio" }])
        .args(["-m", &devices.memory_mb.to_string()])
        .arg("-kernel")
        .arg(&stock.kernel)
        .arg("-initrd")
        .arg(&stock.initrd)
        .args([
            "-append",
            &format!("console=ttyS0 panic=-1 rdinit=/init quiet mitigations=off {arguments}"),
        ]);
    command.args(numa(devices.numa_nodes, devices.memory_mb));
    if let Some((output, control)) = &devices.lines {
        command.args(["-device", "virtio-serial-pci"]);
        for (name, line) in [("output", output), ("control", control)] {
            let fd = line.as_raw_fd();
            command.args(["-chardev".into(), format!("socket,id={name},fd={fd}")]);
            command.args(["-device".into(), format!("virtserialport,chardev={name},name={name}")]);
        }
    }
    let backend = match &devices.network {
        Network::None => None,
        Network::Frames(fd) => {
            let fd = fd.as_raw_fd();
            Some(format!("dgram,id=net,local.type=fd,local.str={fd}"))
        }
        Network::Tap(name) => Some(format!("tap,id=net,ifname={name},script=no,downscript=no")),
    };
    if let Some(backend) = backend {
        // A ROM would only be there to boot from the network.
        command.args(["-netdev", &backend, "-device", "virtio-net-pci,netdev=net,romfile="]);
    }
    if let Some(share) = &devices.share {
        let path = share.display();
        command.args([
            "-virtfs".into(),
            format!("local,path={path},mount_tag=job,security_model=none,multidevs=remap"),
        ]);
    }
    Ok(command)
}

/// Arguments by which each NUMA node has as many processors and as much memory; none for one node.
fn numa(nodes: usize, memory_mb: u32) -> Vec<String> {
    if nodes == 1 {
        return Vec::new();
    }
    let (each, mb) = (PROCESSORS / nodes, memory_mb as usize / nodes);
    let node = |node: usize| {
        let (first, last) = (node * each, (node + 1) * each - 1);
        [
            "-object".into(),
            format!("memory-backend-ram,id=ram{node},size={mb}M"),
            "-numa".into(),
            format!("node,nodeid={node},cpus={first}-{last},memdev=ram{node}"),
        ]
    };
    (0..nodes).flat_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_processors_and_memory() {
        assert!(numa(1, 512).is_empty());
        assert_eq!(
            numa(2, 512).join(" "),
            "-object memory-backend-ram,id=ram0,size=256M -numa node,nodeid=0,cpus=0-0,memdev=ram0 \
             -object memory-backend-ram,id=ram1,size=256M -numa node,nodeid=1,cpus=1-1,memdev=ram1"
        );
    }

    #[test]
    fn the_compressed_kernel_is_found() {
        let mut image = vec![0; 512 * 3];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248] = 16;
        image[0x24c] = 8;
        image[1024 + 16..1024 + 24].copy_from_slice(b"kern\x04\0\0\0");
        assert_eq!(payload(&image), Some(&b"kern"[..]));
        assert_eq!(payload(&image[..1040]), None);
        assert_eq!(payload(b"short"), None);
    }

    #[test]
    fn modprobes_list_is_read() {
        let text =
            "builtin crc32\ninsmod /x/lib/modules/6.1/a.ko \ninsmod /x/lib/modules/6.1/b.ko o=1\n";
        assert_eq!(
            parse_show_depends(text),
            ["/x/lib/modules/6.1/a.ko", "/x/lib/modules/6.1/b.ko"].map(PathBuf::from)
        );
    }
}
