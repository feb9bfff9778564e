//! Names of sysfs and of devices, as programs look them up that know nothing of the library: each way
//! that libc has, and those that are not ours as ever.

mod common;

use std::path::Path;
use std::process::Output;

use common::{command, succeeded};
use tempfile::TempDir;

/// Runs a program over the library, whose files are to be in a folder.
fn run(words: &[&str], folder: &Path) -> Output {
    command(words)
        .env("LD_PRELOAD", common::library().join("libibverbs.so.1"))
        .env("TMPDIR", folder)
        .output()
        .unwrap()
}

fn said(words: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    let said = succeeded(&words.join(" "), &run(words, folder.path()));
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "{words:?} left files");
    said
}

/// The same of a program that ends by `_exit`, as dash does: the next one removes what it leaves.
fn said_in_haste(words: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    succeeded(&words.join(" "), &run(words, folder.path()))
}

#[test]
fn each_way_finds_the_device() {
    let device = "/sys/class/infiniband/elver0";
    assert_eq!(said(&["ls", "/sys/class/infiniband"]), "elver0\n");
    assert_eq!(said(&["cat", &format!("{device}/ports/1/gid_attrs/types/0")]), "RoCE v2\n");
    assert_eq!(said(&["stat", "-c", "%F", "/dev/infiniband/uverbs0"]), "character special file\n");
    assert_eq!(said(&["readlink", "-f", device]), format!("{device}\n"));
    assert_eq!(
        said(&["grep", "-r", "Ethernet", device]),
        format!("{device}/ports/1/link_layer:Ethernet\n")
    );
    assert_eq!(
        said(&["find", &format!("{device}/tc"), "-type", "f"]),
        format!("{device}/tc/1/traffic_class\n")
    );
    assert_eq!(said(&["cat", "/sys/class/infiniband_verbs/uverbs0/ibdev"]), "elver0\n");
    // The interface that has the device's address.
    let net = format!("{device}/device/net");
    assert_eq!(said(&["ls", &net]), "lo\n");
    assert_eq!(said(&["cat", &format!("{net}/lo/ifindex")]), "1\n");
    let program = "import os\nos.chdir('/sys/class/infiniband/elver0')\nprint(os.listdir('ports'), os.access('/sys/class/\
                   infiniband', os.R_OK), os.stat('/dev/infiniband/uverbs0').st_mode)";
    assert_eq!(said(&["python3", "-c", program]), "['1'] True 8630\n");
}

/// What programs read there, and libibumad; and libc's calls that look names up by its own ones.
#[test]
fn other_ways_and_files_are_there() {
    let device = "/sys/class/infiniband/elver0";
    let files = [
        ("device/numa_node", "-1"),
        ("device/modalias", "elver"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/cap_mask", "0x00010000"),
        ("ports/1/sm_sl", "0"),
        ("ports/1/gid_attrs/types/0", "RoCE v2"),
        ("ports/1/gid_attrs/ndevs/0", "lo"),
        ("tc/1/traffic_class", "Global tclass=0"),
    ];
    for (file, text) in files {
        assert_eq!(said(&["cat", &format!("{device}/{file}")]), format!("{text}\n"));
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    assert_eq!(said(&["cat", &format!("{device}/device/local_cpulist")]), online);
    let number = |file: &str, base| {
        let text = said(&["cat", &format!("{device}/{file}")]);
        u64::from_str_radix(text.trim().rsplit(',').next().unwrap(), base).unwrap()
    };
    assert!(number("device/local_cpus", 16) & 1 == 1 || !online.starts_with('0'));
    assert!([1024, 2048, 4096].contains(&number("ports/1/active_mtu", 10)));

    let asks = format!("F={device}/node_type; [ -r $F ] && [ -f $F ] && [ ! -x $F ] && echo yes");
    for shell in ["bash", "dash"] {
        assert_eq!(said_in_haste(&[shell, "-c", &asks]), "yes\n", "{shell}");
    }
    let program = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nnames = ctypes.c_void_p()\n\
        for call in ('scandir', 'scandir64'): print(libc[call](b'/sys/class/infiniband', ctypes.byref(names), None, None))\n\
        print(libc.scandir(b'/nowhere', ctypes.byref(names), None, None), ctypes.get_errno())\n\
        libc.canonicalize_file_name.restype = ctypes.c_void_p\n\
        print(bool(libc.canonicalize_file_name(b'/sys/class/infiniband/elver0')))\n\
        print(libc.euidaccess(b'/dev/infiniband/uverbs0', os.R_OK), libc.faccessat(-1, b'/sys/class/infiniband', os.R_OK, 0))\n\
        print(libc.readlinkat(-1, b'/sys/class/infiniband/elver0/device/net/lo', ctypes.create_string_buffer(99), 99))";
    let all = "3\n3\n-1 2\nTrue\n0 0\n17\n";
    assert_eq!(said(&["python3", "-c", program]), all);
}

/// By libibumad, which opens no device for what it tells here.
#[test]
fn ibstat_shows_the_device() {
    assert_eq!(said(&["/usr/sbin/ibstat", "-l"]), "elver0\n");
    let told = said(&["/usr/sbin/ibstat"]);
    for line in ["CA 'elver0'", "CA type: Elver", "State: Active", "Capability mask: 0x00010000"] {
        assert!(told.contains(line), "{line} in {told}");
    }
    let told = said_in_haste(&["/usr/sbin/ibstatus"]);
    assert!(told.contains("'elver0' port 1 status:") && told.contains("4: ACTIVE"), "{told}");
}

/// rdma_cm's device is a character device by its name and by its descriptor, and refuses what is no command.
#[test]
fn the_device_of_rdma_cm_is_there() {
    let program = "import os, stat\nfd = os.open('/dev/infiniband/rdma_cm', os.O_RDWR)\n\
                   print(stat.S_ISCHR(os.stat('/dev/infiniband/rdma_cm').st_mode), \
                   stat.S_ISCHR(os.fstat(fd).st_mode))\n\
                   for bad in (b'', b'1234567', bytes(8), b'\\x0c' + bytes(7), b'\\xff' * 8, b'\\x01\\0\\0\\0\\xff\\0\\0\\0'):\n\
                   \x20  try: os.write(fd, bad); print('taken')\n\
                   \x20  except OSError as error: print(error.errno)\n\
                   os.close(fd)";
    let said = said(&["python3", "-c", program]);
    assert_eq!(said, "True True\n22\n22\n22\n22\n22\n22\n");
}

/// A filter of scandir's may throw or jump, and a thread that waits in fopen may be cancelled: nothing is lost.
#[test]
fn look_ups_may_be_left_half_way() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/paths/leaves.cc");
    let program = common::library().join("leaves");
    let mut compiler = std::process::Command::new("c++");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
    succeeded("c++", &compiler.arg("-lpthread").output().unwrap());
    let fifo = TempDir::new().unwrap();
    let fifo = fifo.path().join("fifo");
    let said = said(&[program.to_str().unwrap(), fifo.to_str().unwrap()]);
    let each = ". 64 7 as ever\n";
    assert_eq!(said, format!("{each}{each}0 0 lost, 0 alive\ncancelled, 0 alive\n"));
}

#[test]
fn other_names_are_as_ever() {
    let text = std::fs::read_to_string("/etc/passwd").unwrap();
    assert_eq!(said(&["cat", "/etc/passwd"]), text);
    assert_eq!(said(&["head", "-c", "0", "/dev/null"]), "");
    for name in [
        "/sys/class/infiniband_mad",
        "/dev/infiniband/umad0",
        "/sys/class/infiniband/other",
        "/nowhere",
    ] {
        let folder = TempDir::new().unwrap();
        let output = run(&["cat", name], folder.path());
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.contains("No such file or directory"), "{name}: {complaint}");
    }
}

/// A program that writes, with a mode, and at a folder.
#[test]
fn files_are_made_as_ever() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    succeeded("cp", &run(&["cp", "/etc/passwd", &at("copy")], folder.path()));
    succeeded("mkdir", &run(&["mkdir", "-m", "700", &at("below")], folder.path()));
    succeeded(
        "touch",
        &run(&["sh", "-c", &format!("umask 077; : > {}", at("below/file"))], folder.path()),
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("below"), mode("below/file")), (0o700, 0o600));
    assert_eq!(std::fs::read(at("copy")).unwrap(), std::fs::read("/etc/passwd").unwrap());
}

/// Where nothing can be written, the names are not there, and the program goes on.
#[test]
fn without_a_folder_there_is_nothing() {
    let output = run(&["ls", "/sys/class/infiniband"], Path::new("/nowhere"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file or directory"));
}
