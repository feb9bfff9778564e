//! A disk over iSER (RFC 7145): Linux's target in user space (`tgtd`) and libiscsi's tests, which write, read and verify
//! blocks. Both meet by rdma_cm; on one host, and between two network namespaces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::counted::Counted;
use super::not_run::Ran;
use super::outcome::{Item, Outcome};
use super::place::{self, APART, Place, SERVER};
use super::process::{Call, Ended, Runner};
use super::programs::{free_port, item, split};
use super::small::proved;

const TARGET: &str = "iqn.2026-11.elver.test:disk";
const INITIATOR: &str = "iqn.2026-11.elver.test:initiator";
const DISK_BYTES: u64 = 16 << 20;
/// Those that write and those that compare, one a time: on a second connection of a process libiscsi 1.19 follows a list
/// that it has not made empty.
const SUITES: [&str; 2] = [WRITES, "Verify10"];
const WRITES: &str = "Write16";
/// What the C library hands out is zeroes (mallopt(3), `M_PERTURB`: the complement of this). That list of a first connection
/// is empty where its memory was nobody's before, and which it is hangs on all that was allocated and freed until then.
const ZEROES: (&str, &str) = ("MALLOC_PERTURB_", "255");
/// The largest request of these suites.
const BLOCKS: u64 = 256;
/// What a disk's blocks have where nobody asks for more.
const BLOCK: u64 = 512;
/// What `tgtd` takes in one request where nobody asks for more, in KiB: it hangs up at a larger one.
const TAKEN: u64 = 512;
/// Which of the servers that a host may have `tgtadm` speaks with.
const CONTROL: &str = "4790";

/// libiscsi's tests of a release.
pub(super) struct Tests {
    /// What rows of them are called by, behind their words.
    pub(super) named: String,
    /// What a block of each disk has that they are run on, in bytes: a request is of up to [`BLOCKS`].
    pub(super) blocks: &'static [u64],
}

/// How they are started.
pub(super) struct How<'a> {
    /// What runs such words.
    pub(super) words: &'a dyn Fn(&str) -> Result<Vec<String>>,
    pub(super) env: &'a [(&'a str, &'a str)],
}

/// Runs those of Debian 12, whose libiscsi has no request of more than 256 KiB over iSER.
pub(super) fn run(runner: &Runner, scratch: &Path) -> Result<Ran> {
    let tests = Tests { named: String::new(), blocks: &[BLOCK, 1024] };
    let words = |words: &str| Ok(split(words).into_iter().map(str::to_string).collect());
    tests.run(&How { words: &words, env: &[] }, runner, scratch)
}

impl Tests {
    /// Runs them; between namespaces where this is root. `scratch` is a folder.
    pub(super) fn run(&self, how: &How<'_>, runner: &Runner, scratch: &Path) -> Result<Ran> {
        fs::create_dir_all(scratch).with_context(|| format!("{}", scratch.display()))?;
        let run = |place: &Place| At { tests: self, how, runner, scratch, place }.run();
        let mut ran = Ran::of(run(&Place::host())?);
        ran.add(place::apart(self.wanted(runner, SERVER, APART), run)?);
        Ok(ran)
    }

    /// The names of all that is to be run.
    pub(super) fn all_wanted(&self, runner: &Runner) -> Vec<String> {
        let host = &Place::host().addresses[0];
        [self.wanted(runner, host, ""), self.wanted(runner, SERVER, APART)].concat()
    }

    fn wanted(&self, runner: &Runner, server: &str, place: &str) -> Vec<String> {
        let suites = |block| SUITES.map(|suite| self.name(suite, block, server, place));
        let names = self.blocks.iter().flat_map(|block| suites(*block));
        names.filter(|name| runner.wants(name)).collect()
    }

    fn name(&self, suite: &str, block: u64, server: &str, place: &str) -> String {
        let blocks = match block {
            BLOCK => String::new(),
            block => format!(", blocks of {} KiB", block / 1024),
        };
        client(suite, "", server) + &blocks + &self.named + place
    }
}

fn client(suite: &str, port: &str, server: &str) -> String {
    format!("iscsi-test-cu -d -i {INITIATOR} -t SCSI.{suite} iser://{server}{port}/{TARGET}/1")
}

/// Whether a disk begins and ends with what is written: the suite itself reads nothing back.
fn is_written(disk: &[u8], bytes: usize) -> bool {
    const BYTE: u8 = 0xa6;
    let ends = disk.split_at_checked(bytes).zip(disk.len().checked_sub(bytes));
    ends.is_some_and(|((first, _), last)| {
        [first, &disk[last..]].iter().all(|end| end.iter().all(|byte| *byte == BYTE))
    })
}

/// Where they run.
struct At<'a> {
    tests: &'a Tests,
    how: &'a How<'a>,
    runner: &'a Runner,
    scratch: &'a Path,
    place: &'a Place,
}

impl At<'_> {
    fn run(&self) -> Result<Vec<Item>> {
        let disks = self.tests.blocks.iter().flat_map(|block| SUITES.map(|suite| (suite, *block)));
        disks.filter_map(|(suite, block)| self.suite(suite, block).transpose()).collect()
    }

    fn suite(&self, suite: &str, block: u64) -> Result<Option<Item>> {
        let server = &self.place.addresses[0];
        let place = if self.place.is_host() { "" } else { APART };
        let named = self.tests.name(suite, block, server, place);
        if !self.runner.wants(&named) {
            return Ok(None);
        }
        Counted::forget(&self.runner.told)?;
        let port = free_port()?;
        let disk = self.disk()?;
        let serves = format!(
            "tgtd -f -C {CONTROL} --iser port={port},buf_sz_kb={} --iscsi portal=127.0.0.1:{}",
            TAKEN.max(BLOCKS * block / 1024),
            free_port()?
        );
        let serves = split(&serves);
        let asks = (self.how.words)(&client(suite, &format!(":{port}"), server))?;
        let asks: Vec<&str> = asks.iter().map(String::as_str).collect();
        let socket = self.scratch.join("tgtd").to_str().context("a path of UTF-8")?.to_string();
        let env = [("TGT_IPC_SOCKET", &*socket)];
        let call =
            Call { before: &self.place.before[0], words: &serves, env: &env, ..Call::default() };
        let mut serving = self.runner.start(&call, Path::new("/"))?;
        serving.await_listener(port)?;
        self.offer(&disk, block, &env)?;
        let before = &self.place.before[1];
        let env = [self.how.env, &[ZEROES]].concat();
        let call = Call { before, words: &asks, env: &env, ..Call::default() };
        let asking = self.runner.start(&call, Path::new("/"))?.end()?;
        // Told to end it would free what a connection that closes still uses, and with a disk it takes no signal for it.
        serving.stop()?;
        // A block more each time.
        let moved = block * BLOCKS * (BLOCKS + 1) / 2;
        let item = proved(item(&named, "RC", &[asking]), self.runner, moved)?;
        let is_good = suite != WRITES || is_written(&fs::read(&disk)?, (block * BLOCKS) as usize);
        Ok(Some(match item.passes() && !is_good {
            true => Item {
                outcome: Outcome::Fail,
                said: "the disk has other bytes than were written".to_string(),
                ..item
            },
            false => item,
        }))
    }

    /// A disk of which no two blocks are alike.
    fn disk(&self) -> Result<PathBuf> {
        let path = self.scratch.join("disk.img");
        let bytes: Vec<u8> = (0..DISK_BYTES / 8).flat_map(u64::to_ne_bytes).collect();
        fs::write(&path, bytes).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// Has the server offer it, to everybody: it wants to be told of addresses and of names.
    fn offer(&self, disk: &Path, block: u64, env: &[(&str, &str)]) -> Result<()> {
        let disk = disk.to_str().context("a path of UTF-8")?;
        self.tell(&format!("--mode target --op new --tid 1 --targetname {TARGET}"), env)?;
        let unit = "--mode logicalunit --op new --tid 1 --lun 1";
        self.tell(&format!("{unit} --blocksize {block} --backing-store {disk}"), env)?;
        self.tell("--mode target --op bind --tid 1 --initiator-address ALL", env)?;
        self.tell(&format!("--mode target --op bind --tid 1 --initiator-name {INITIATOR}"), env)
    }

    fn tell(&self, what: &str, env: &[(&str, &str)]) -> Result<()> {
        let words = format!("tgtadm -C {CONTROL} --lld iser {what}");
        let call = Call { words: &split(&words), env, bare: true, ..Call::default() };
        let Ended { status, said } = self.runner.start(&call, Path::new("/"))?.end()?;
        ensure!(status.success(), "{words}: {status}: {}", said.trim());
        Ok(())
    }
}
