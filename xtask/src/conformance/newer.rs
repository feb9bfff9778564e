//! Programs of newer releases of Debian, unmodified, each under its own release's loader and C library, and bound as a
//! whole when it starts: a name that the library lacks ends it at once. They are downloaded ([`crate::lab`] keeps them),
//! and nothing is installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::disks::{How, Tests};
use super::not_run::Ran;
use super::outcome::Item;
use super::process::{Call, Runner};
use super::programs::{free_port, item, split};
use crate::lab::unpacked;

struct Release {
    name: &'static str,
    suite: &'static str,
    /// Whether it changes from day to day, so that a quick run leaves it out.
    moves: bool,
}

const RELEASES: [Release; 2] = [
    Release { name: "Debian 13", suite: "trixie", moves: false },
    Release { name: "Debian testing", suite: "testing", moves: true },
];
const PACKAGES: [&str; 5] =
    ["ibverbs-providers", "ibverbs-utils", "libiscsi-bin", "perftest", "rdmacm-utils"];
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// All references of a program and of its libraries are bound before it runs.
const EAGERLY: [(&str, &str); 1] = [("LD_BIND_NOW", "1")];

const ALONE: [&str; 2] = ["ibv_devices", "ibv_devinfo -v"];
/// Programs whose two ends meet over TCP, at a port that is named, and their transports.
const PAIRS: [(&str, &str); 10] = [
    ("RC", "ibv_rc_pingpong -g 0 -n 200 -c"),
    ("UD", "ibv_ud_pingpong -g 0 -n 200 -c"),
    ("XRC", "ibv_xsrq_pingpong -g 0 -n 200"),
    ("RC", "ib_write_bw -n 200"),
    ("RC", "ib_read_lat -n 200"),
    ("RC", "ib_send_bw -n 200 -e"),
    ("UD", "ib_send_lat -n 200 -c UD"),
    ("RC", "ib_atomic_bw -n 200"),
    ("DC", "ib_write_bw -n 200 -c DC"),
    ("RC", "ib_write_bw -n 200 -R"),
];
/// Programs that meet by rdma_cm: the server, and its client.
const MANAGED: [(&str, &str, &str); 2] = [
    ("RC", "rping -s -a 127.0.0.1 -C 5 -V", "rping -c -a 127.0.0.1 -C 5 -V"),
    ("UD", "udaddy", "udaddy -s 127.0.0.1"),
];

/// What a block of a disk has that libiscsi's tests are run on, in bytes: in these releases its requests may be large.
const BLOCKS: [u64; 1] = [8192];

/// Runs them, but for those of a release that cannot be fetched. `scratch` is a folder.
pub(super) fn run(runner: &Runner, scratch: &Path, quick: bool) -> Result<Ran> {
    let mut ran = Ran::default();
    for release in RELEASES.iter().filter(|release| !(quick && release.moves)) {
        let wanted = release.wanted(runner);
        if wanted.is_empty() {
            continue;
        }
        ran.add(match unpacked(release.suite, &PACKAGES) {
            Ok(root) => release.run(runner, scratch, &root)?,
            Err(error) => Ran::none(wanted, format!("{error:#}")),
        });
    }
    Ok(ran)
}

impl Release {
    fn named(&self, words: &str) -> String {
        format!("{words} ({})", self.name)
    }

    /// The names of what is to be run.
    fn wanted(&self, runner: &Runner) -> Vec<String> {
        let pairs = PAIRS.iter().map(|(_, words)| words);
        let managed = MANAGED.iter().map(|(_, _, client)| client);
        let all = ALONE.iter().chain(pairs).chain(managed).map(|words| self.named(words));
        let all = all.filter(|name| runner.wants(name));
        all.chain(self.disks().all_wanted(runner)).collect()
    }

    fn disks(&self) -> Tests {
        Tests { named: self.named(""), blocks: &BLOCKS }
    }

    fn run(&self, runner: &Runner, scratch: &Path, root: &Path) -> Result<Ran> {
        let mut ran = Ran::of(self.small(runner, root)?);
        let words = |words: &str| under(root, words);
        ran.add(self.disks().run(&How { words: &words, env: &EAGERLY }, runner, scratch)?);
        Ok(ran)
    }

    /// Those that need nothing but each other.
    fn small(&self, runner: &Runner, root: &Path) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for words in ALONE.into_iter().filter(|words| runner.wants(&self.named(words))) {
            let ended = runner.alone(&borrowed(&under(root, words)?), Path::new("/"), &EAGERLY)?;
            items.push(item(&self.named(words), "", &[ended]));
        }
        let mut pair = |transport, name: &str, server: &str, client: &str| -> Result<()> {
            let words = [under(root, server)?, under(root, client)?];
            let words = words.each_ref().map(|words| borrowed(words));
            let [server, client] =
                words.each_ref().map(|words| Call { words, env: &EAGERLY, ..Call::default() });
            let ended = runner.pair(&server, &client, Path::new("/"))?;
            items.push(item(&self.named(name), transport, &ended));
            Ok(())
        };
        for (transport, name) in PAIRS.into_iter().filter(|row| runner.wants(&self.named(row.1))) {
            let server = format!("{name} -p {}", free_port()?);
            pair(transport, name, &server, &format!("{server} 127.0.0.1"))?;
        }
        for (transport, server, client) in MANAGED {
            if runner.wants(&self.named(client)) {
                pair(transport, client, server, client)?;
            }
        }
        Ok(items)
    }
}

/// The words that run a program under a release's own loader. `timeout` is the host's, so that nothing
/// of the release's is asked before its loader.
fn under(root: &Path, words: &str) -> Result<Vec<String>> {
    let at = |place: PathBuf| place.into_os_string().into_string().ok().context("a path of UTF-8");
    let mut words = split(words).into_iter();
    let program = words.next().context("a program's name")?;
    let start = ["timeout".into(), "100".into(), at(root.join(LOADER))?, "--library-path".into()];
    let start = start.into_iter().chain([at(root.join(LIBRARIES))?]);
    let program = at(root.join("usr/bin").join(program))?;
    Ok(start.chain([program]).chain(words.map(str::to_string)).collect())
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
