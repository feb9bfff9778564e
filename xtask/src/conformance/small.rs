//! Debian's programs that were not written to try libibverbs: DAPL's and fio, which know RDMA, and iperf, which does not,
//! over librspreload. Each must have moved its bytes over Elver.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::counted::Counted;
use super::outcome::{Item, Outcome};
use super::process::{Call, Runner};
use super::programs::{free_port, item, split};

/// DAPL's list of adapters: over sockets, and over rdma_cm.
const ADAPTERS: &str = "\
elver-scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"elver0 1\" \"\"
elver-cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"127.0.0.1 0\" \"\"
";
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

/// Runs them; `scratch` is a folder.
pub(super) fn run(runner: &Runner, scratch: &Path) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    fs::create_dir_all(scratch).with_context(|| format!("{}", scratch.display()))?;
    let adapters = scratch.join("dat.conf");
    fs::write(&adapters, ADAPTERS).with_context(|| format!("{}", adapters.display()))?;
    let adapters = adapters.to_str().context("a path of UTF-8")?;
    // Over sockets its server listens on the host's first address that is none of loopback, unless it is told.
    let adapters = [("DAT_OVERRIDE", adapters), ("DAPL_SCM_NETDEV", "lo")];
    for adapter in ["elver-scm", "elver-cma"] {
        let client = format!("dapltest -T T -s 127.0.0.1 -D {adapter} {TRANSACTIONS}");
        if !runner.wants(&client) {
            continue;
        }
        Counted::forget(&runner.told)?;
        let server = format!("dapltest -T S -D {adapter}");
        let end = format!("dapltest -T Q -s 127.0.0.1 -D {adapter}");
        let words = [&server, &client, &end].map(|words| split(words));
        let [server, asking, end] =
            words.each_ref().map(|words| Call { words, env: &adapters, ..Call::default() });
        let mut serving = runner.start(&server, Path::new("/"))?;
        // A client that came before it ends well; and one of DAPL over sockets that was refused once sends its request a
        // second time in the form of an older version, which it does not say: two bytes more, that the server takes for
        // the beginning of what comes next (`dapli_socket_connected` and `dapli_socket_accept_rtu` of openib_scm/cm.c).
        // That server refuses the connection, and then waits for ever for its end.
        serving.hear("Service Point Ready - ")?;
        let asking = runner.start(&asking, Path::new("/"))?.end()?;
        runner.start(&end, Path::new("/"))?.end()?;
        // Not each server hears that it is to end.
        serving.dismiss()?;
        items.push(proved(item(&client, "RC", &[asking]), runner, TRANSACTED)?);
    }

    for adapter in ["elver-scm", "elver-cma"] {
        let client = format!("dtest -P {adapter} -h 127.0.0.1");
        if !runner.wants(&client) {
            continue;
        }
        Counted::forget(&runner.told)?;
        let server = format!("dtest -P {adapter} -s");
        let words = [&server, &client].map(|words| split(words));
        let [server, asking] =
            words.each_ref().map(|words| Call { words, env: &adapters, ..Call::default() });
        // Its server has the client come before it listens: the same may befall it, and nobody can wait for it.
        let ended = runner.pair(&server, &asking, Path::new("/"))?;
        items.push(proved(item(&client, "RC", &ended), runner, TESTED)?);
    }

    items.extend(fio(runner)?);
    items.extend(iperf(runner)?);
    Ok(items)
}

fn fio(runner: &Runner) -> Result<Option<Item>> {
    let port = free_port()?;
    // It knows an engine's options from where the engine is named on.
    let common = format!("fio --ioengine=rdma --port={port} --size=8m --bs=64k");
    let client = format!("{common} --name=client --hostname=127.0.0.1 --verb=write --rw=write");
    let server = format!("{common} --name=server --rw=read");
    if !runner.wants(&named(&client, port)) {
        return Ok(None);
    }
    Counted::forget(&runner.told)?;
    let words = [&server, &client].map(|words| split(words));
    let [server, asking] = words.each_ref().map(|words| Call { words, ..Call::default() });
    let mut serving = runner.start(&server, Path::new("/"))?;
    // Its server waits for ever for a client that came too early and has gone.
    serving.await_listener(port)?;
    let asking = runner.start(&asking, Path::new("/"))?.end()?;
    let serving = if asking.status.success() { serving.end()? } else { serving.stop()? };
    let ended = [serving, asking];
    Ok(Some(proved(item(&named(&client, port), "RC", &ended), runner, WRITTEN)?))
}

/// A program of TCP.
fn iperf(runner: &Runner) -> Result<Option<Item>> {
    let port = free_port()?;
    let client = format!("iperf -p {port} -c 127.0.0.1 -n 4M");
    let server = format!("iperf -p {port} -s -P 1");
    let name = format!("{} (librspreload)", client.replace(&format!(" -p {port}"), ""));
    if !runner.wants(&name) {
        return Ok(None);
    }
    Counted::forget(&runner.told)?;
    let words = [&server, &client].map(|words| split(words));
    let [server, asking] =
        words.each_ref().map(|words| Call { words, env: &RSOCKETS, ..Call::default() });
    let mut serving = runner.start(&server, Path::new("/"))?;
    serving.await_listener(port)?;
    let asking = runner.start(&asking, Path::new("/"))?.end()?;
    let serving = if asking.status.success() { serving.end()? } else { serving.stop()? };
    Ok(Some(proved(item(&name, "RC", &[serving, asking]), runner, STREAMED)?))
}

/// A name that is the same in each run.
fn named(words: &str, port: u16) -> String {
    words.replace(&format!(" --port={port}"), "")
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
