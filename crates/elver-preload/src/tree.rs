//! What stands in sysfs about an RDMA device, as files: programs read it by name. They are made when the
//! first of these names is looked up, in a folder of this process, and go when it exits.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

use elver_verbs::{Device as _, Gid, Mtu};

use crate::caps::PORT_CAN;
use crate::device::{name, node_guid};
use crate::engine::Engine;
use crate::fork::Own;
use crate::gid_index;
use crate::link_layer;

/// The folder, and the process that made it.
struct Tree {
    at: PathBuf,
    maker: u32,
}

impl Tree {
    /// Has it tell what the port's state is now.
    fn renew(&self) {
        let Ok(engine) = Engine::get() else { return };
        let Some(up) = engine.lock().port_on_demand() else { return };
        for (file, text) in port_state(up) {
            // What cannot be written stays as it was.
            let file = self.at.join(format!("infiniband/{}/{file}", name()));
            let _ = fs::write(file, text.to_string() + "\n");
        }
    }
}

static TREE: Own<Option<Tree>> = Own::new();

/// Where the names of sysfs and of devices are that this library answers for; none for all others.
pub(crate) fn place(path: &[u8]) -> Option<CString> {
    const CLASSES: &[u8] = b"/sys/class/";
    if path == b"/dev/infiniband/uverbs0" || path == b"/dev/infiniband/rdma_cm" {
        // A character device, as it should be; nobody is to speak to it.
        return CString::new("/dev/null").ok();
    }
    let below = path.strip_prefix(CLASSES)?;
    let class = below.split(|byte| *byte == b'/').next()?;
    if class != b"infiniband" && class != b"infiniband_verbs" {
        return None;
    }
    // It is made before the tree, which tells of it.
    let device = told_by_device();
    let tree = TREE.get_or_make(|| Ok::<_, Infallible>(make(device).ok()));
    let tree = tree.ok()?.as_ref()?;
    if below.ends_with(b"/state") || below.ends_with(b"/phys_state") {
        tree.renew();
    }
    let mut whole = tree.at.as_os_str().as_encoded_bytes().to_vec();
    whole.push(b'/');
    whole.extend_from_slice(below);
    CString::new(whole).ok()
}

fn make(told: Result<Told, i32>) -> io::Result<Tree> {
    let told = told.map_err(io::Error::from_raw_os_error)?;
    let maker = process::id();
    let folder = std::env::temp_dir();
    // Numbers of processes are those of one namespace.
    let prefix = format!("elver-sysfs-{}-", fs::metadata("/proc/self/ns/pid")?.ino());
    sweep(&folder, &prefix);
    let at = folder.join(format!("{prefix}{maker}-{:x}", node_guid()));
    fs::DirBuilder::new().mode(0o700).create(&at)?;
    let tree = Tree { at, maker };
    for (file, text) in files(&told, &processors()) {
        let file = tree.at.join(file);
        fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
        fs::write(file, text + "\n")?;
    }
    if let Some(name) = told.interface.as_deref() {
        // As below the device of a NIC that has RDMA: programs look here for the interface that has its address.
        let net = tree.at.join(format!("infiniband/{}/device/net", self::name()));
        fs::create_dir_all(&net)?;
        symlink(Path::new("/sys/class/net").join(name), net.join(name))?;
    }
    // SAFETY: the function takes nothing, and leaves all but files alone.
    unsafe { libc::atexit(remove) };
    Ok(tree)
}

/// Removes what processes left that were killed, or ended without their last words (`_exit`).
fn sweep(folder: &Path, prefix: &str) {
    let Ok(all) = fs::read_dir(folder) else { return };
    for entry in all.filter_map(Result::ok) {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let pid = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another user's stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What the device tells of itself.
struct Told {
    gid: Gid,
    /// Where it is in the GID table.
    gid_index: u8,
    /// The name of its network interface.
    interface: Option<String>,
    mtu: Mtu,
    /// Its LID, if the port is InfiniBand's.
    lid: Option<u16>,
}

fn told_by_device() -> Result<Told, i32> {
    let state = Engine::open()?.lock();
    let gid = state.device.query_gid(0).map_err(|_| libc::EINVAL)?;
    let mtu = state.device.query_port().active_mtu;
    let lid = link_layer::is_infiniband().then(|| link_layer::lid_at(state.device.address()));
    let (gid_index, interface) = (gid_index::own(), state.device.interface());
    Ok(Told { gid, gid_index, interface, mtu, lid })
}

/// The processors that are near to the device, which is all of them: as a list, "0-1".
fn processors() -> String {
    let online = fs::read_to_string("/sys/devices/system/cpu/online");
    online.map_or_else(|_| "0".to_string(), |text| text.trim().to_string())
}

/// The same as the kernel writes it in hexadecimal, 32 processors a word.
fn mask(list: &str) -> String {
    /// More than any kernel knows.
    const PROCESSORS_MAX: usize = 1 << 13;
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    let mut words = vec![0_u32];
    for processor in ranges.flatten().take_while(|processor| *processor < PROCESSORS_MAX) {
        let word = processor / 32;
        words.resize(words.len().max(word + 1), 0);
        words[word] |= 1 << (processor % 32);
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// Removes the folder; a child of the process that made it leaves it.
extern "C" fn remove() {
    if let Some(Some(tree)) = TREE.get()
        && tree.maker == process::id()
    {
        // What cannot be removed stays: the process ends, and nobody could be told.
        let _ = fs::remove_dir_all(&tree.at);
    }
}

fn port_state(up: bool) -> [(&'static str, &'static str); 2] {
    let [state, phys] = if up { ["4: ACTIVE", "5: LinkUp"] } else { ["1: DOWN", "3: Disabled"] };
    [("ports/1/state", state), ("ports/1/phys_state", phys)]
}

/// Each file, and what it says: as the kernel has them for RoCE, as far as the device has an answer.
fn files(told: &Told, processors: &str) -> Vec<(String, String)> {
    let groups = |bytes: &[u8]| {
        let group = |pair: &[u8]| format!("{:02x}{:02x}", pair[0], pair[1]);
        bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
    };
    let guid = groups(&node_guid().to_be_bytes());
    let device = format!("infiniband/{}", name());
    let (link_layer, lid, kind) = match told.lid {
        Some(lid) => ("InfiniBand", lid, "IB/RoCE v1"),
        None => ("Ethernet", 0, "RoCE v2"),
    };
    let of_device = [
        ("node_type", "1: CA".to_string()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", "Elver".to_string()),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_string()),
        ("hca_type", "Elver".to_string()),
        ("hw_rev", "0x0".to_string()),
        ("device/numa_node", "-1".to_string()),
        ("device/local_cpulist", processors.to_string()),
        ("device/local_cpus", mask(processors)),
        ("device/modalias", "elver".to_string()),
        ("ports/1/link_layer", link_layer.to_string()),
        ("ports/1/rate", "100 Gb/sec (4X EDR)".to_string()),
        ("ports/1/lid", format!("{lid:#x}")),
        ("ports/1/sm_lid", "0x0".to_string()),
        ("ports/1/sm_sl", "0".to_string()),
        ("ports/1/cap_mask", format!("{PORT_CAN:#010x}")),
        ("ports/1/active_mtu", told.mtu.bytes().to_string()),
        ("ports/1/lid_mask_count", "0".to_string()),
        ("ports/1/pkeys/0", "0xffff".to_string()),
        ("tc/1/traffic_class", "Global tclass=0".to_string()),
    ];
    // Attributes of empty entries the kernel refuses to read; to be empty is the most that a file can do.
    let nothing = (&Gid([0; 16]), "", Some(""));
    let ours = (&told.gid, kind, told.interface.as_deref());
    let of_gids = (0..=told.gid_index).flat_map(|index| {
        let (gid, kind, interface) = if index == told.gid_index { ours } else { nothing };
        let ndev =
            interface.map(|name| (format!("ports/1/gid_attrs/ndevs/{index}"), name.to_string()));
        let gid = (format!("ports/1/gids/{index}"), groups(&gid.0));
        [Some(gid), Some((format!("ports/1/gid_attrs/types/{index}"), kind.to_string())), ndev]
    });
    let of_gids = of_gids.flatten();
    let of_verbs = [
        ("infiniband_verbs/abi_version", "6".to_string()),
        ("infiniband_verbs/uverbs0/ibdev", name()),
        ("infiniband_verbs/uverbs0/abi_version", "1".to_string()),
    ];
    let owned = |(file, text): (&str, String)| (file.to_string(), text);
    let owned_text = |(file, text): (&str, &str)| owned((file, text.to_string()));
    let of_port = port_state(true).map(owned_text);
    let of_device = of_device.into_iter().map(owned).chain(of_port).chain(of_gids);
    let below = |(file, text)| (format!("{device}/{file}"), text);
    of_device.map(below).chain(of_verbs.into_iter().map(owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_not_ours() {
        for path in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/net",
            "/sys/class/infinibandx",
            "/sys/class/infiniband_mad",
            "/dev/infiniband",
            "/dev/infiniband/uverbs1",
            "sys/class/infiniband",
        ] {
            assert!(place(path.as_bytes()).is_none(), "{path}");
        }
    }

    #[test]
    fn what_the_dead_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut dead = process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let names = [
            (format!("elver-sysfs-7-{}-a", dead.id()), false),
            (format!("elver-sysfs-7-{}-b", process::id()), true),
            (format!("elver-sysfs-8-{}-c", dead.id()), true),
            ("elver-sysfs-7-x-d".to_string(), true),
        ];
        for (name, _) in &names {
            fs::create_dir_all(folder.path().join(name).join("infiniband")).unwrap();
        }
        sweep(folder.path(), "elver-sysfs-7-");
        for (name, stays) in names {
            assert_eq!(folder.path().join(&name).exists(), stays, "{name}");
        }
    }

    #[test]
    fn numbers_are_written_as_sysfs_writes_them() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        let told = Told {
            gid,
            gid_index: 1,
            interface: Some("eth7".to_string()),
            mtu: Mtu::Mtu1024,
            lid: None,
        };
        let files = files(&told, "0-1");
        let text = |end: &str| &files.iter().find(|(file, _)| file.ends_with(end)).unwrap().1;
        assert_eq!(text("gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000");
        assert_eq!(text("gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!([text("gid_attrs/types/0"), text("gid_attrs/types/1")], ["", "RoCE v2"]);
        assert_eq!(text("node_guid").len(), 19);
        assert_eq!([text("gid_attrs/ndevs/0"), text("gid_attrs/ndevs/1")], ["", "eth7"]);
        assert_eq!(text("active_mtu"), "1024");
        assert_eq!(text("cap_mask"), "0x00010000");
        assert_eq!([text("local_cpus"), text("local_cpulist")], ["00000003", "0-1"]);
    }

    #[test]
    fn processors_are_a_mask() {
        assert_eq!(mask("0"), "00000001");
        assert_eq!(mask("0-3,8,33-34"), "00000006,0000010f");
        assert_eq!(mask("63"), "80000000,00000000");
        // What the kernel says may be anything, and this ends.
        assert_eq!([mask(""), mask("x-y"), mask("3-1")], ["00000000"; 3]);
        assert_eq!(mask("0-99999999999").len(), 9 * 256 - 1);
    }
}
