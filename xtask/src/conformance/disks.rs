//! A disk over iSER (RFC 7145): Linux's target in user space (`tgtd`) and libiscsi's tests, which write, read and verify
//! blocks. Both meet by rdma_cm; on one host, and between two network namespaces.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::counted::Counted;
use super::not_run::Ran;
use super::outcome::Item;
use super::place::{self, APART, Place, SERVER};
use super::process::{Call, Ended, Runner};
use super::programs::{free_port, item, split};
use super::small::proved;

const TARGET: &str = "iqn.2026-11.elver.test:disk";
const INITIATOR: &str = "iqn.2026-11.elver.test:initiator";
const DISK_BYTES: u64 = 16 << 20;
/// Those that write and those that compare, one a time: libiscsi's second connection of a process crashes in its thread for
/// rdma_cm's events.
const SUITES: [&str; 2] = ["Write16", "Verify10"];
/// What each moves at least: 255 times a block more than before.
const MOVED: u64 = 512 * 255 * 256 / 2;
/// Which of the servers that a host may have `tgtadm` speaks with.
const CONTROL: &str = "4790";

/// Runs them; between namespaces where this is root. `scratch` is a folder.
pub(super) fn run(runner: &Runner, scratch: &Path) -> Result<Ran> {
    fs::create_dir_all(scratch).with_context(|| format!("{}", scratch.display()))?;
    let mut ran = Ran::of(At { runner, scratch, place: &Place::host() }.run()?);
    let wanted: Vec<String> = SUITES
        .map(|suite| client(suite, "", SERVER) + APART)
        .into_iter()
        .filter(|name| runner.wants(name))
        .collect();
    ran.add(place::apart(wanted, |place| At { runner, scratch, place }.run())?);
    Ok(ran)
}

fn client(suite: &str, port: &str, server: &str) -> String {
    format!("iscsi-test-cu -d -i {INITIATOR} -t SCSI.{suite} iser://{server}{port}/{TARGET}/1")
}

/// Where they run.
struct At<'a> {
    runner: &'a Runner,
    scratch: &'a Path,
    place: &'a Place,
}

impl At<'_> {
    fn run(&self) -> Result<Vec<Item>> {
        let runs = SUITES.into_iter().map(|suite| self.suite(suite));
        runs.filter_map(Result::transpose).collect()
    }

    fn suite(&self, suite: &str) -> Result<Option<Item>> {
        let server = &self.place.addresses[0];
        let place = if self.place.is_host() { "" } else { APART };
        let named = client(suite, "", server) + place;
        if !self.runner.wants(&named) {
            return Ok(None);
        }
        Counted::forget(&self.runner.told)?;
        let port = free_port()?;
        let disk = self.disk()?;
        let serves = format!(
            "tgtd -f -C {CONTROL} --iser port={port} --iscsi portal=127.0.0.1:{}",
            free_port()?
        );
        let asks = client(suite, &format!(":{port}"), server);
        let [serves, asks] = [&serves, &asks].map(|words| split(words));
        let socket = self.scratch.join("tgtd").to_str().context("a path of UTF-8")?.to_string();
        let env = [("TGT_IPC_SOCKET", &*socket)];
        let call =
            Call { before: &self.place.before[0], words: &serves, env: &env, ..Call::default() };
        let mut serving = self.runner.start(&call, Path::new("/"))?;
        serving.await_listener(port)?;
        self.offer(&disk, &env)?;
        let call = Call { before: &self.place.before[1], words: &asks, ..Call::default() };
        let asking = self.runner.start(&call, Path::new("/"))?.end()?;
        // Told to end it would free what a connection that closes still uses, and with a disk it takes no signal for it.
        serving.stop()?;
        proved(item(&named, "RC", &[asking]), self.runner, MOVED).map(Some)
    }

    /// An empty disk.
    fn disk(&self) -> Result<PathBuf> {
        let path = self.scratch.join("disk.img");
        let file = File::create(&path).with_context(|| format!("{}", path.display()))?;
        file.set_len(DISK_BYTES).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// Has the server offer it, to everybody: it wants to be told of addresses and of names.
    fn offer(&self, disk: &Path, env: &[(&str, &str)]) -> Result<()> {
        let disk = disk.to_str().context("a path of UTF-8")?;
        self.tell(&format!("--mode target --op new --tid 1 --targetname {TARGET}"), env)?;
        let unit = format!("--mode logicalunit --op new --tid 1 --lun 1 --backing-store {disk}");
        self.tell(&unit, env)?;
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
