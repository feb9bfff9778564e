//! Caches that keep the pages of language models for other processes: PeerCache and InfiniStore.

use std::path::Path;

use anyhow::{Result, ensure};

use super::super::process::Call;
use super::super::programs::free_port;
use super::stage::{Said, Stage, borrowed, succeeded};

/// Bytes of all pages of `cache.py`.
pub(super) const PAGES: u64 = 2 << 20;

/// It has its GID at this index.
pub(super) fn peercache(stage: &Stage<'_>) -> Result<Said> {
    kept(stage, "peercache", &[("ELVER_GID_INDEX", "3")])
}

pub(super) fn infinistore(stage: &Stage<'_>) -> Result<Said> {
    kept(stage, "infinistore", &[])
}

/// Runs `cache.py` at both ends.
fn kept(stage: &Stage<'_>, library: &str, env: &[(&str, &str)]) -> Result<Said> {
    let python = stage.installed.program("caches", "python");
    let port = free_port()?.to_string();
    let [there, here] = &stage.place.addresses;
    // One that has the directory's address takes itself for the directory.
    let here = if here == there { "127.0.0.2" } else { here };
    let keeper = stage.script(&python, "cache.py", &[library, "keeper", there, here, &port])?;
    let getter = stage.script(&python, "cache.py", &[library, "getter", here, there, &port])?;
    let [keeper, getter] = [borrowed(&keeper), borrowed(&getter)];
    let [at_keeper, at_getter] = &stage.place.before;
    let keeper = Call { before: at_keeper, words: &keeper, env, bare: false };
    let getter = Call { before: at_getter, words: &getter, env, bare: false };
    let mut keeping = stage.runner.start(&keeper, Path::new("/"))?;
    let got = match keeping.hear("ready") {
        Ok(_) => stage.runner.start(&getter, Path::new("/")).and_then(|getting| getting.end()),
        Err(error) => Err(error),
    };
    keeping.stop()?;
    let got = got?;
    succeeded("the getter", &got)?;
    ensure!(got.said.lines().any(|line| line == "same"), "it does not say that it got the same");
    Ok(Said::default())
}
