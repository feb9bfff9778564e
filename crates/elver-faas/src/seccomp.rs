//! What of the system's calls a container's processes do not have under an OCI runtime; engines have lists of their own.
//!
//! Without capabilities most of these are refused anyway. A user namespace of a process's own would give it some again, and
//! with them parts of the kernel that were not written for strangers: so no process makes a namespace. The rest is what has no
//! use in a function and has let processes out of containers before: keys, io_uring, BPF, `userfaultfd`, watching performance.

use rustix::io::Errno;
use serde_json::{Value, json};

/// Calls that are refused (`EPERM`).
const REFUSED: [&str; 60] = [
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_adjtime64",
    "clock_settime",
    "clock_settime64",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "mbind",
    "migrate_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "vhangup",
];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [u64; 7] = [
    0x0002_0000, // CLONE_NEWNS
    0x0200_0000, // CLONE_NEWCGROUP
    0x0400_0000, // CLONE_NEWUTS
    0x0800_0000, // CLONE_NEWIPC
    0x1000_0000, // CLONE_NEWUSER
    0x2000_0000, // CLONE_NEWPID
    0x4000_0000, // CLONE_NEWNET
];

/// The list, in the form of an OCI bundle.
pub fn list() -> Value {
    let refuse = |names: &[&str], error: Errno| {
        let error = error.raw_os_error();
        json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error})
    };
    let mut rules = vec![
        refuse(&REFUSED, Errno::PERM),
        // Its flags are in memory, where no filter looks: the C library takes clone then.
        refuse(&["clone3"], Errno::NOSYS),
    ];
    for flag in NAMESPACES {
        let mut rule = refuse(&["clone"], Errno::PERM);
        let has_it =
            json!({"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"});
        rule["args"] = json!([has_it]);
        rules.push(rule);
    }
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
}
