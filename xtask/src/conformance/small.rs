//! Debian's programs that were not written to try libibverbs: DAPL's and fio, which know RDMA, and iperf, which does not,
//! over librspreload; on one host and between two network namespaces. Each must have moved its bytes over Elver.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::counted::Counted;
use super::not_run::Ran;
use super::outcome::{Item, Outcome};
use super::place::{self, APART, Place, SERVER};
use super::process::{Call, Ended, Runner};
use super::programs::{free_port, item, split};

/// DAPL's adapters: over sockets, and over rdma_cm.
const ADAPTERS: [&str; 2] = ["elver-scm", "elver-cma"];
/// What its test does, with all data compared.
const TRANSACTIONS: &str =
    "-V -i 20 -t 1 -w 1 client SR 256 1 server SR 256 1 client RR 4096 client RW 4096";
/// 20 times a READ and a WRITE of 4 KiB.
const TRANSACTED: u64 = 20 * 2 * 4096;
/// Of dtest, the least of what its messages and WRITEs have.
const TESTED: u64 = 1024;
const WRITTEN: u64 = 8 << 20;
/// What has librdmacm's sockets stand before the C library's; the loader knows where libraries are.
const RSOCKETS: [(&str, &str); 1] = [("LD_PRELOAD", "/usr/$LIB/rsocket/librspreload.so")];
const STREAMED: u64 = 4 << 20;

/// Runs them; between namespaces where this is root. `scratch` is a folder.
pub(super) fn run(runner: &Runner, scratch: &Path) -> Result<Ran> {
    fs::create_dir_all(scratch).with_context(|| format!("{}", scratch.display()))?;
    let host = Place::host();
    let mut ran = Ran::of(At { runner, scratch, place: &host }.run()?);
    let wanted = apart(SERVER).into_iter().filter(|name| runner.wants(name)).collect();
    ran.add(place::apart(wanted, |place| At { runner, scratch, place }.run())?);
    Ok(ran)
}

fn dapltest(adapter: &str, server: &str) -> String {
    format!("dapltest -T T -s {server} -D {adapter} {TRANSACTIONS}")
}

fn dtest(adapter: &str, server: &str) -> String {
    format!("dtest -P {adapter} -h {server}")
}

fn fio(port: &str, server: &str) -> String {
    // It knows an engine's options from where the engine is named on.
    format!(
        "fio --ioengine=rdma{port} --size=8m --bs=64k --name=client --hostname={server} --verb=write --rw=write"
    )
}

fn iperf(port: &str, server: &str) -> String {
    format!("iperf{port} -c {server} -n 4M")
}

/// Names are the same in each run: they have no ports.
fn name(words: &str, place: &str) -> String {
    let over = if words.starts_with("iperf") { " (librspreload)" } else { "" };
    format!("{words}{over}{place}")
}

/// The rows of two namespaces.
fn apart(server: &str) -> [String; 6] {
    let [scm, cma] = ADAPTERS;
    [
        dapltest(scm, server),
        dapltest(cma, server),
        dtest(scm, server),
        dtest(cma, server),
        fio("", server),
        iperf("", server),
    ]
    .map(|words| name(&words, APART))
}

/// Where they run.
struct At<'a> {
    runner: &'a Runner,
    scratch: &'a Path,
    place: &'a Place,
}

impl At<'_> {
    fn run(&self) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for adapter in ADAPTERS {
            items.extend(self.dapltest(adapter)?);
        }
        for adapter in ADAPTERS {
            items.extend(self.dtest(adapter)?);
        }
        items.extend(self.fio()?);
        items.extend(self.iperf()?);
        Ok(items)
    }

    fn server(&self) -> &str {
        &self.place.addresses[0]
    }

    fn name(&self, words: &str) -> String {
        name(words, if self.place.is_host() { "" } else { APART })
    }

    fn call<'c>(
        &'c self,
        end: usize,
        words: &'c [&'c str],
        env: &'c [(&'c str, &'c str)],
    ) -> Call<'c> {
        Call { before: &self.place.before[end], words, env, ..Call::default() }
    }

    /// DAPL's list of adapters for an end, the one over rdma_cm at the end's own address.
    fn adapters(&self, end: usize) -> Result<String> {
        let path = self.scratch.join(format!("dat{end}.conf"));
        let own = &self.place.addresses[end];
        let list = format!(
            "elver-scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"elver0 1\" \"\"\n\
             elver-cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{own} 0\" \"\"\n"
        );
        fs::write(&path, list).with_context(|| format!("{}", path.display()))?;
        Ok(path.to_str().context("a path of UTF-8")?.to_string())
    }

    fn dapltest(&self, adapter: &str) -> Result<Option<Item>> {
        let client = dapltest(adapter, self.server());
        if !self.runner.wants(&self.name(&client)) {
            return Ok(None);
        }
        Counted::forget(&self.runner.told)?;
        let server = format!("dapltest -T S -D {adapter}");
        let end = format!("dapltest -T Q -s {} -D {adapter}", self.server());
        let lists = [self.adapters(0)?, self.adapters(1)?];
        let env = lists.each_ref().map(|list| self.dapl(list));
        let words = [&server, &client, &end].map(|words| split(words));
        let mut serving = self.runner.start(&self.call(0, &words[0], &env[0]), Path::new("/"))?;
        // A client that came before it ends well; and one of DAPL over sockets that was refused once sends its request a
        // second time in the form of an older version, which it does not say: two bytes more, that the server takes for
        // the beginning of what comes next (`dapli_socket_connected` and `dapli_socket_accept_rtu` of openib_scm/cm.c).
        // That server refuses the connection, and then waits for ever for its end.
        serving.hear("Service Point Ready - ")?;
        let asking = self.ask(&self.call(1, &words[1], &env[1]))?;
        self.ask(&self.call(1, &words[2], &env[1]))?;
        // Not each server hears that it is to end.
        serving.dismiss()?;
        self.proved(&client, &[asking], TRANSACTED).map(Some)
    }

    fn dtest(&self, adapter: &str) -> Result<Option<Item>> {
        let client = dtest(adapter, self.server());
        if !self.runner.wants(&self.name(&client)) {
            return Ok(None);
        }
        Counted::forget(&self.runner.told)?;
        let server = format!("dtest -P {adapter} -s");
        let lists = [self.adapters(0)?, self.adapters(1)?];
        let env = lists.each_ref().map(|list| self.dapl(list));
        let words = [&server, &client].map(|words| split(words));
        // Its server has the client come before it listens: the same may befall it, and nobody can wait for it.
        let ended = self.runner.pair(
            &self.call(0, &words[0], &env[0]),
            &self.call(1, &words[1], &env[1]),
            Path::new("/"),
        )?;
        self.proved(&client, &ended, TESTED).map(Some)
    }

    /// Over sockets its server listens on the host's first address that is none of loopback, unless it is told.
    fn dapl<'c>(&self, list: &'c str) -> [(&'static str, &'c str); 2] {
        [("DAT_OVERRIDE", list), ("DAPL_SCM_NETDEV", self.place.device)]
    }

    fn fio(&self) -> Result<Option<Item>> {
        let port = free_port()?;
        let at_port = format!(" --port={port}");
        let client = fio(&at_port, self.server());
        let server =
            format!("fio --ioengine=rdma{at_port} --size=8m --bs=64k --name=server --rw=read");
        // Its server waits for ever for a client that came too early and has gone.
        self.listening(&server, &client, &at_port, port, &[], WRITTEN)
    }

    /// A program of TCP.
    fn iperf(&self) -> Result<Option<Item>> {
        let port = free_port()?;
        let at_port = format!(" -p {port}");
        let client = iperf(&at_port, self.server());
        let server = format!("iperf{at_port} -s -P 1");
        self.listening(&server, &client, &at_port, port, &RSOCKETS, STREAMED)
    }

    /// A server that listens at a port of rdma_cm's, and a client that comes when it does.
    fn listening(
        &self,
        server: &str,
        client: &str,
        at_port: &str,
        port: u16,
        env: &[(&str, &str)],
        bytes: u64,
    ) -> Result<Option<Item>> {
        let named = client.replace(at_port, "");
        if !self.runner.wants(&self.name(&named)) {
            return Ok(None);
        }
        Counted::forget(&self.runner.told)?;
        let words = [server, client].map(split);
        let mut serving = self.runner.start(&self.call(0, &words[0], env), Path::new("/"))?;
        serving.await_listener(port)?;
        let asking = self.ask(&self.call(1, &words[1], env))?;
        let serving = if asking.status.success() { serving.end()? } else { serving.stop()? };
        self.proved(&named, &[serving, asking], bytes).map(Some)
    }

    fn ask(&self, call: &Call<'_>) -> Result<Ended> {
        self.runner.start(call, Path::new("/"))?.end()
    }

    fn proved(&self, words: &str, ended: &[Ended], bytes: u64) -> Result<Item> {
        proved(item(&self.name(words), "RC", ended), self.runner, bytes)
    }
}

/// What passes only if its bytes went over Elver.
pub(super) fn proved(item: Item, runner: &Runner, bytes: u64) -> Result<Item> {
    match Counted::read(&runner.told)?.prove(bytes) {
        Err(error) if item.passes() => {
            Ok(Item { outcome: Outcome::Fail, said: error.to_string(), ..item })
        }
        _ => Ok(item),
    }
}
