//! `elver sim … --replay FILE`: what failed once, run again.

use std::path::Path;

use elver_console::{Failure, say};
use serde_json::json;

use crate::report::{self, Found};
use crate::seeds;
use crate::simulation::Simulation;

/// Runs all that a report holds, and tells which still fail.
pub(crate) fn run<S: Simulation>(path: &Path, as_json: bool) -> Result<(), Failure> {
    let all = report::read(path, S::NAME)?;
    let mut failing = Vec::new();
    for found in &all {
        let simulation = S::from_options(&found.options)?;
        let outcome = seeds::run_seed(found.seed, |seed| seeds::outcome_of(&simulation, seed));
        let now = outcome.err().map(|broken| broken.what);
        if !as_json {
            say!("{}", line::<S>(found, now.as_deref()));
        }
        if let Some(failure) = now {
            failing.push(Found::new(S::NAME, found.seed, found.options.clone(), &failure));
        }
    }
    if as_json {
        say!(
            "{}",
            json!({
                "sim": S::NAME,
                "replayed": all.len(),
                "failed_seeds": failing.iter().map(|found| found.seed).collect::<Vec<_>>(),
                "failures": failing,
                "version": env!("CARGO_PKG_VERSION"),
                "commit": env!("ELVER_COMMIT"),
            })
        );
    }
    if failing.is_empty() {
        return Ok(());
    }
    let (count, of) = (failing.len(), all.len());
    Err(Failure::Failed(anyhow::anyhow!("{count} of {of} seeds of {} still fail", path.display())))
}

fn line<S: Simulation>(found: &Found, now: Option<&str>) -> String {
    let Found { seed, version, commit, failure, .. } = found;
    match now {
        None => format!("seed {seed} passes; {version} ({commit}) said: {failure}"),
        Some(now) if now == failure => format!("seed {seed} still fails: {now}"),
        Some(now) => {
            format!("seed {seed} still fails: {now}\n  {version} ({commit}) said: {failure}")
        }
    }
}
