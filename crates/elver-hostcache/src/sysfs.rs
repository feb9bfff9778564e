//! Devices and their attributes in sysfs: what libibverbs reads where the kernel does not answer by netlink, and what
//! of it cannot change while a device is there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{Attribute, Message};

/// Where it is, if nobody says otherwise.
pub const PATH: &str = "/sys";
/// Who says otherwise, to libibverbs as to us.
pub const VARIABLE: &str = "SYSFS_PATH";

/// Of a device, below its directory, which its driver sets once. States, addresses and firmware are none of them.
const FIXED: [&str; 4] = ["node_type", "device/modalias", "hca_type", "board_id"];
const ABI_VERSION: &str = "class/infiniband_verbs/abi_version";
/// Devices that are looked at.
const DEVICES_MAX: usize = 256;

/// The path that `variable` has, or the usual one.
pub fn path(variable: Option<&OsStr>) -> PathBuf {
    variable.filter(|path| !path.is_empty()).map_or_else(|| PATH.into(), PathBuf::from)
}

/// A message for each device: the names of its character device and of itself, and the number of the former. Of kind 0,
/// which no message of the kernel's has.
pub fn devices(sysfs: &Path) -> Vec<Message> {
    let class = sysfs.join("class/infiniband_verbs");
    let entries = fs::read_dir(&class).into_iter().flatten().flatten();
    let mut devices: Vec<Message> = entries
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"uverbs"))
        .take(DEVICES_MAX)
        .map(|entry| {
            let value = |name| fs::read(entry.path().join(name)).unwrap_or_default();
            let parts = [entry.file_name().as_bytes(), &value("ibdev"), &value("dev")].concat();
            Message { kind: 0, flags: 0, payload: parts }
        })
        .collect();
    devices.sort_by(|one, other| one.payload.cmp(&other.payload));
    devices
}

/// What is fixed of each device.
pub fn attributes(sysfs: &Path) -> Vec<Attribute> {
    let class = sysfs.join("class/infiniband");
    let entries = fs::read_dir(&class).into_iter().flatten().flatten().take(DEVICES_MAX);
    let of_devices = entries.flat_map(|entry| FIXED.map(|name| entry.path().join(name)));
    let mut paths: Vec<PathBuf> = of_devices.collect();
    paths.sort();
    paths.push(sysfs.join(ABI_VERSION));
    let attribute = |path: PathBuf| {
        let value = fs::read(&path).ok().filter(|value| !value.is_empty() && value.len() < 512)?;
        Some(Attribute { path: path.as_os_str().as_bytes().to_vec(), value })
    };
    paths.into_iter().filter_map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_what_is_fixed_of_them_are_read() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file(ABI_VERSION, "6\n");
        file("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        file("class/infiniband_verbs/uverbs0/dev", "231:192\n");
        file("class/infiniband/mlx5_0/node_type", "1: CA\n");
        file("class/infiniband/mlx5_0/fw_ver", "16.35\n");
        let devices = devices(root.path());
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].payload, b"uverbs0mlx5_0\n231:192\n");
        let attributes = attributes(root.path());
        let values: Vec<&[u8]> = attributes.iter().map(|one| &*one.value).collect();
        assert_eq!(values, [&b"1: CA\n"[..], b"6\n"]);
    }
}
