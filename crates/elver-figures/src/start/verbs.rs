//! A device of the host's that functions may open by libibverbs, and the handler that does so by pyverbs.

use std::fs;
use std::path::{Path, PathBuf};

/// The handler's module.
pub(super) const HANDLER: &str = include_str!("verbs.py");

/// Where Debian's python3-pyverbs is, which containers see.
const PYVERBS: &str = "usr/lib/python3/dist-packages/pyverbs";
/// Of a GID that is an IPv4 address, which RoCE has beside one of IPv6.
const MAPPED: &str = "0000:0000:0000:0000:0000:ffff:";
const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// A device that processes of any user may open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    /// What containers are given of it.
    pub(super) file: PathBuf,
    /// Of the address by which a queue pair is connected.
    pub(super) gid_index: u32,
    /// The providers that libibverbs tries on this host, as it takes them from its environment: containers have no `/etc`.
    pub(super) providers: String,
}

impl Device {
    /// The first one of the host below this directory, or why there is none.
    pub(super) fn find(root: &Path) -> Result<Device, String> {
        let mut found: Vec<_> = fs::read_dir(root.join("sys/class/infiniband_verbs"))
            .into_iter()
            .flatten()
            .filter_map(|entry| Device::of(root, &entry.ok()?.file_name().into_string().ok()?))
            .collect();
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let device = found.into_iter().next().ok_or(
            "it takes an RDMA device of the kernel's, with an address, and this host has none; \
             `cargo xtask lab run faas-start` measures it on rxe",
        )?;
        match root.join(PYVERBS).is_dir() {
            true => Ok(device),
            false => Err("its handler uses pyverbs: sudo apt install python3-pyverbs".into()),
        }
    }

    /// The device whose character device has this name.
    fn of(root: &Path, uverbs: &str) -> Option<Device> {
        let sysfs = root.join("sys/class");
        let name =
            fs::read_to_string(sysfs.join("infiniband_verbs").join(uverbs).join("ibdev")).ok()?;
        let name = name.trim().to_string();
        let file = Path::new("dev/infiniband").join(uverbs);
        let gids = sysfs.join("infiniband").join(&name).join("ports/1/gids");
        let gid = |index: u32| fs::read_to_string(gids.join(index.to_string())).ok();
        let all = (0..).map_while(|index| Some((index, gid(index)?)));
        let there: Vec<_> = all.filter(|(_, gid)| gid.trim() != NO_GID).collect();
        let mapped = there.iter().find(|(_, gid)| gid.starts_with(MAPPED));
        let (gid_index, _) = mapped.or(there.first())?;
        root.join(&file).exists().then(|| Device {
            name,
            file: Path::new("/").join(file),
            gid_index: *gid_index,
            providers: providers(root),
        })
    }
}

/// As the lines `driver NAME` of libibverbs' configuration name them.
fn providers(root: &Path) -> String {
    let files = fs::read_dir(root.join("etc/libibverbs.d")).into_iter().flatten();
    let texts = files.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let mut names: Vec<String> = texts
        .flat_map(|text| {
            let names = text.lines().filter_map(|line| line.trim().strip_prefix("driver "));
            names.map(|name| name.trim().to_string()).collect::<Vec<_>>()
        })
        .collect();
    names.sort_unstable();
    names.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_device_is_one_with_an_address_that_can_be_opened() {
        let host = elver_testbed::scratch::Scratch::new().unwrap();
        let root = host.path();
        assert!(Device::find(root).unwrap_err().contains("this host has none"));
        write(root, "sys/class/infiniband_verbs/abi_version", "6\n");
        for (uverbs, name) in [("uverbs0", "rxe1"), ("uverbs1", "rxe0"), ("uverbs2", "a_down")] {
            write(
                root,
                &format!("sys/class/infiniband_verbs/{uverbs}/ibdev"),
                &format!("{name}\n"),
            );
            let gid = |index: u32, gid: &str| {
                let file = format!("sys/class/infiniband/{name}/ports/1/gids/{index}");
                write(root, &file, &format!("{gid}\n"));
            };
            gid(0, NO_GID);
            if name != "a_down" {
                gid(1, "fe80:0000:0000:0000:5054:00ff:fe00:0001");
            }
            if name == "rxe0" {
                gid(2, &format!("{MAPPED}0a09:0001"));
            }
        }
        assert!(Device::find(root).unwrap_err().contains("this host has none"));
        for uverbs in ["uverbs0", "uverbs1", "uverbs2"] {
            write(root, &format!("dev/infiniband/{uverbs}"), "");
        }
        assert!(Device::find(root).unwrap_err().contains("python3-pyverbs"));
        write(root, &format!("{PYVERBS}/__init__.py"), "");
        let file = PathBuf::from("/dev/infiniband/uverbs1");
        write(root, "etc/libibverbs.d/siw.driver", "driver siw\n");
        write(root, "etc/libibverbs.d/rxe.driver", "# Soft RoCE\ndriver rxe\n");
        let providers = "rxe:siw".into();
        let expected = Device { name: "rxe0".into(), file, gid_index: 2, providers };
        assert_eq!(Device::find(root), Ok(expected));
    }
}
