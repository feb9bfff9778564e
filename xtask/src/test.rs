//! `cargo xtask test`: the tests with what they need. On Debian, as root or where sudo asks nothing, it
//! installs the programs that they start; elsewhere it says what is missing. Tests that make network
//! namespaces get root in the same way.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Programs that tests start, a header that one reads, and the Debian packages that have them.
const NEEDED: [(&str, &str); 21] = [
    ("tshark", "tshark"),
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("ping", "iputils-ping"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("strace", "strace"),
    ("/etc/libibverbs.d/mlx5.driver", "ibverbs-providers"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ib_write_bw", "perftest"),
    ("rping", "rdmacm-utils"),
    ("/usr/sbin/ibstat", "infiniband-diags"),
    ("python3", "python3"),
    ("/usr/lib/python3/dist-packages/pyverbs/__init__.py", "python3-pyverbs"),
    ("crun", "crun"),
    ("runc", "runc"),
    ("podman", "podman"),
    // Without it podman does not begin; its package only recommends it.
    ("/usr/lib/podman/netavark", "netavark"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
];

/// How this process gets root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    Is,
    Sudo,
    No,
}

/// Installs what is missing and runs `cargo test --workspace` with these arguments.
pub(crate) fn run(arguments: &[String]) -> Result<String> {
    let root = root();
    let missing = missing(&|program| is_there(program));
    if !missing.is_empty() {
        install(&missing, root)?;
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--workspace"]).args(arguments);
    match root {
        Root::Is => {}
        // Cargo builds as the user, and starts each program of tests so.
        Root::Sudo => {
            let host = host()?.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{host}_RUNNER"), "sudo -n -E");
        }
        Root::No => eprintln!(
            "note: not root, and sudo would ask: tests that make network namespaces will say that they need it"
        ),
    }
    let status = command.status().context("cannot run cargo test")?;
    ensure!(status.success(), "tests failed");
    Ok("all tests passed".to_string())
}

/// Packages that have the programs which are not there, each once.
fn missing(is_there: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

/// Whether a program is in a path, or a file is there that is named with its own.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Users' paths often lack those of the administrator, where some of these stand.
    let more = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).to_path_buf());
    std::env::split_paths(&path).chain(more).any(|directory| directory.join(program).is_file())
}

fn root() -> Root {
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let own = Command::new("id").arg("-u").output();
    if own.is_ok_and(|output| output.stdout.trim_ascii() == b"0") {
        Root::Is
    } else if quiet(Command::new("sudo").args(["-n", "true"])) {
        Root::Sudo
    } else {
        Root::No
    }
}

fn install(packages: &[&str], root: Root) -> Result<()> {
    let by_hand = format!("apt-get install {}", packages.join(" "));
    if root == Root::No || !is_there("apt-get") {
        bail!("the tests need programs that are not there; on Debian, as root: {by_hand}");
    }
    println!("the tests need programs that are not there: {by_hand}");
    for arguments in [
        vec!["update", "-q"],
        [&["install", "-q", "-y", "--no-install-recommends"], packages].concat(),
    ] {
        let mut words = vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
        if root == Root::Sudo {
            words.splice(0..0, ["sudo", "-n"]);
        }
        words.extend(arguments);
        let status =
            Command::new(words[0]).args(&words[1..]).status().context("cannot run apt-get")?;
        ensure!(status.success(), "{} failed; by hand: {by_hand}", words.join(" "));
    }
    Ok(())
}

/// The machine that this is built for.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say its host")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_once() {
        assert!(missing(&|_| true).is_empty());
        assert_eq!(missing(&|program| program != "ip"), ["iproute2"]);
        let all = missing(&|_| false);
        assert_eq!(
            all,
            [
                "tshark",
                "iproute2",
                "ethtool",
                "iputils-ping",
                "util-linux",
                "strace",
                "ibverbs-providers",
                "ibverbs-utils",
                "perftest",
                "rdmacm-utils",
                "infiniband-diags",
                "python3",
                "python3-pyverbs",
                "crun",
                "runc",
                "podman",
                "netavark",
                "libibverbs-dev",
                "librdmacm-dev"
            ]
        );
    }

    /// The README gives the command, and no list of its own.
    #[test]
    fn the_readme_gives_this_command() {
        let readme = include_str!("../../README.md");
        assert!(readme.contains("\n$ cargo xtask test\n"));
    }
}
