//! The library before Debian's own libibverbs and libmlx5, in a host whose sysfs tells of mlx5 devices (`host.sh`). There is
//! no such kernel here: what asks netlink is tried in the lab, by rxe.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// The longest that a program may take, in seconds.
const LIMIT: &str = "60";

fn library() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        // Where this test stands: `target/PROFILE/deps`. Cargo gives shared objects to builds alone.
        let own = std::env::current_exe().unwrap();
        let target = own.ancestors().nth(3).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "elver-fastverbs", "--target-dir"]).arg(target);
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        target.join("debug/libelver_fastverbs.so")
    })
}

struct Host {
    place: TempDir,
    devices: &'static str,
}

/// What a program said on both outputs, and the files that it opened.
struct Said {
    text: String,
    opened: String,
}

impl Host {
    fn new() -> Host {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes devices in a mount namespace: run it as root, or by `cargo xtask test`"
        );
        Host { place: tempfile::tempdir().unwrap(), devices: "0" }
    }

    fn cache(&self) -> PathBuf {
        self.place.path().join("verbs")
    }

    /// Runs a program of ibverbs-utils, with the library if a mode for it is given.
    fn run(&self, program: &str, mode: Option<&str>) -> Said {
        let trace = self.place.path().join("trace");
        let mut command = self.traced(&["-e", "trace=openat", "-o"]);
        command.arg(&trace);
        if let Some(mode) = mode {
            command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
            command.args(["-E", "ELVER_FASTVERBS_LOG=1", "-E", &format!("ELVER_FASTVERBS={mode}")]);
        }
        let output = command.arg(program).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{program}: {}\n{text}", output.status);
        Said { text, opened: fs::read_to_string(trace).unwrap() }
    }

    /// strace in the host, with these arguments and those that are added.
    fn traced(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT, "unshare", "--mount", "--propagation", "private", "bash"]);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host.sh"))
            .arg(self.place.path())
            .args(["strace", "-f"])
            .args(arguments)
            .env("DEVICES", self.devices)
            .env("ELVER_FASTVERBS_CACHE", self.cache())
            .env_remove("MLX5_STALL_CQ_POLL");
        command
    }

    /// The devices that are listed, and what the library says.
    fn list(&self, mode: &str) -> String {
        self.run("ibv_devices", Some(mode)).text
    }
}

fn says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not in:\n{said}");
    }
}

#[test]
fn the_list_is_libibverbs_own_with_one_provider_loaded() {
    let host = Host::new();
    let plain = host.run("ibv_devices", None);
    says(&plain.text, &["mlx5_0", "0c42a10300651e30"]);
    says(&plain.opened, &["libmlx5-rdmav34.so", "libsiw-rdmav34.so", "/etc/libibverbs.d"]);

    says(&host.list("renew"), &["mlx5_0", "renewed 1"]);
    let fast = host.run("ibv_devices", Some("on"));
    says(&fast.text, &["lists 1"]);
    let listed = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with("elver-fastverbs")).map(Into::into).collect()
    };
    assert_eq!(listed(&fast.text), listed(&plain.text));
    says(&fast.opened, &["libmlx5-rdmav34.so"]);
    for other in
        ["libsiw", "librxe", "/etc/libibverbs.d", "modalias", "infiniband_verbs/abi_version"]
    {
        assert!(!fast.opened.contains(other), "{other} was opened:\n{}", fast.opened);
    }
}

#[test]
fn mlx5_does_not_look_for_sandy_bridge() {
    let host = Host::new();
    let plain = host.run("ibv_devinfo", None);
    says(&plain.text, &["hca_id:\tmlx5_0"]);
    says(&plain.opened, &["/proc/cpuinfo"]);
    says(&host.list("renew"), &["renewed 1"]);
    let fast = host.run("ibv_devinfo", Some("on"));
    says(&fast.text, &["hca_id:\tmlx5_0", "lists 1"]);
    assert!(!fast.opened.contains("/proc/cpuinfo"), "{}", fast.opened);
    // And is what it was where it is told to keep out of the way.
    says(&host.run("ibv_devinfo", Some("off")).opened, &["/proc/cpuinfo"]);
}

/// Its child asks for devices. Meanwhile, the thread that opens one ahead is inside of libibverbs.
const FORKS: &str = "
import ctypes, os
verbs, count = ctypes.CDLL(None), ctypes.c_int()
child = os.fork()
if not child:
    verbs.ibv_get_device_list.restype = ctypes.c_void_p
    os._exit(0 if verbs.ibv_get_device_list(ctypes.byref(count)) and count.value == 1 else 3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn a_program_that_forks_while_a_device_is_opened_ahead_has_children_that_find_it() {
    let host = Host::new();
    let providers = "/etc/libibverbs.d";
    let mut command =
        host.traced(&["-P", providers, "-e", "inject=openat:delay_enter=1000000:when=1", "-o"]);
    command.arg(host.place.path().join("trace"));
    let libraries = format!("LD_PRELOAD={} libibverbs.so.1", library().display());
    command.args(["-E", &libraries, "-E", "ELVER_FASTVERBS_WARM=any"]);
    let output = command.args(["/usr/bin/python3", "-S", "-c", FORKS]).output().unwrap();
    let trace = fs::read_to_string(host.place.path().join("trace")).unwrap();
    assert!(output.status.success(), "{output:?}\n{trace}");
    says(&trace, &[providers]);
}

#[test]
fn another_set_of_devices_makes_the_cache_stale_and_is_remembered() {
    let mut host = Host::new();
    says(&host.list("on"), &["mlx5_0", "absent 1", "alone 1"]);
    assert!(!host.cache().exists(), "nobody asked for a cache");
    says(&host.list("renew"), &["renewed 1"]);
    host.devices = "0 1";
    says(
        &host.list("on"),
        &["mlx5_0", "mlx5_1", "the kernel shows other devices", "stale: devices 1", "renewed 1"],
    );
    says(&host.list("on"), &["mlx5_0", "mlx5_1", "lists 1"]);
}

/// The cache may be to blame: the device is opened without it, and it is made anew, by the same process.
#[test]
fn a_device_that_cannot_be_opened_has_the_cache_made_anew_and_is_tried_once_more() {
    let host = Host::new();
    says(&host.list("renew"), &["renewed 1"]);
    let before = fs::metadata(host.cache()).unwrap().ino();
    let open = |failures: &str| {
        let inject = format!("inject=openat:error=ENODEV:when={failures}");
        let mut command = host.traced(&["-P", "/dev/infiniband/uverbs0", "-e", &inject, "-o"]);
        command.arg(host.place.path().join("trace"));
        command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
        let output = command.args(["-E", "ELVER_FASTVERBS_LOG=1", "ibv_devinfo"]).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };
    let (opened, said) = open("1");
    assert!(opened, "{said}");
    says(&said, &["hca_id:\tmlx5_0", "open failed 1", "renewed 1"]);
    assert_ne!(fs::metadata(host.cache()).unwrap().ino(), before, "{said}");
    // What fails without it, too, fails.
    let (opened, said) = open("1+");
    assert!(!opened, "{said}");
    says(&said, &["open failed 1", "renewed 1"]);
    says(&host.list("on"), &["lists 1"]);
}

#[test]
fn a_cache_that_others_could_have_made_is_refused_once_and_all_goes_on() {
    let host = Host::new();
    says(&host.list("renew"), &["renewed 1"]);
    let good = fs::read(host.cache()).unwrap();
    let refused = |why: &str| {
        let said = host.list("on");
        says(&said, &["mlx5_0", "is not believed", why, "refused 1", "alone 1"]);
        assert_eq!(said.matches("is not believed").count(), 1, "{said}");
    };
    fs::set_permissions(host.cache(), fs::Permissions::from_mode(0o622)).unwrap();
    refused("its mode is 622");
    fs::set_permissions(host.cache(), fs::Permissions::from_mode(0o644)).unwrap();
    chown(host.cache(), Some(12_345), None).unwrap();
    refused("it belongs to user 12345");
    chown(host.cache(), Some(0), None).unwrap();
    fs::write(host.cache(), &good[..good.len() / 2]).unwrap();
    refused("and its header says");
    fs::write(host.cache(), [b"another!", &good[8..]].concat()).unwrap();
    refused("magic number");
    let mut huge = good.clone();
    // The length of the first record.
    huge[26..30].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(host.cache(), huge).unwrap();
    refused("checksum");
    fs::write(host.cache(), good).unwrap();
    says(&host.list("on"), &["lists 1"]);
}

#[test]
fn a_provider_of_another_name_is_not_loaded() {
    let host = Host::new();
    says(&host.list("renew"), &["renewed 1"]);
    let mut cache = elver_hostcache::file::read(&host.cache()).unwrap();
    cache.providers[0].path = b"/lib/x86_64-linux-gnu/libresolv.so.2".to_vec();
    elver_hostcache::file::write(&host.cache(), &cache).unwrap();
    let said = host.run("ibv_devices", Some("on"));
    says(&said.text, &["mlx5_0", "stale: provider 1", "renewed 1"]);
    assert!(!said.opened.contains("libresolv"), "{}", said.opened);
}

#[test]
fn a_provider_that_was_replaced_is_seen_and_the_list_is_whole() {
    let host = Host::new();
    says(&host.list("renew"), &["renewed 1"]);
    let mut cache = elver_hostcache::file::read(&host.cache()).unwrap();
    cache.providers[0].build[0] ^= 1;
    elver_hostcache::file::write(&host.cache(), &cache).unwrap();
    says(&host.list("on"), &["mlx5_0", "stale: provider 1", "renewed 1"]);
    cache.library[0] ^= 1;
    elver_hostcache::file::write(&host.cache(), &cache).unwrap();
    says(&host.list("on"), &["mlx5_0", "stale: library 1", "renewed 1"]);
    says(&host.list("on"), &["mlx5_0", "lists 1"]);
}

/// Another boot may give a device's number to another one, and the kernel would show the same devices.
#[test]
fn a_cache_of_an_earlier_boot_is_made_anew() {
    let host = Host::new();
    says(&host.list("renew"), &["renewed 1"]);
    let mut cache = elver_hostcache::file::read(&host.cache()).unwrap();
    cache.boot[0] ^= 1;
    elver_hostcache::file::write(&host.cache(), &cache).unwrap();
    says(&host.list("on"), &["mlx5_0", "stale: boot 1", "renewed 1"]);
    says(&host.list("on"), &["mlx5_0", "lists 1"]);
}
