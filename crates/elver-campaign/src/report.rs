//! The file that says which seeds failed: a JSON line each, written as soon as it is known, from
//! which another build replays them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::seed_args::SeedArgs;

/// Longest file that is replayed, in lines.
const LINES_MAX: usize = 1_000_000;

/// A seed that failed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Found {
    /// Kind of the simulation: `elver sim KIND`.
    pub(crate) sim: String,
    pub(crate) seed: u64,
    /// What the run was to be like, besides its seed.
    pub(crate) options: Value,
    /// Of the program that found it.
    pub(crate) version: String,
    pub(crate) commit: String,
    /// What it said.
    pub(crate) failure: String,
}

impl Found {
    pub(crate) fn new(sim: &str, seed: u64, options: Value, failure: &str) -> Found {
        Found {
            sim: sim.into(),
            seed,
            options,
            version: env!("CARGO_PKG_VERSION").into(),
            commit: env!("ELVER_COMMIT").into(),
            failure: failure.into(),
        }
    }
}

/// A report that is being written.
pub(crate) struct Report {
    path: PathBuf,
    file: Option<File>,
}

impl Report {
    /// The report that a command asks for, if any. One with a name of the user's is made at once,
    /// so that a run of hours does not end with a file that cannot be written.
    pub(crate) fn of(args: &SeedArgs, sim: &str) -> anyhow::Result<Option<Report>> {
        if let Some(path) = &args.report {
            let mut report = Report { path: path.clone(), file: None };
            report.file()?;
            return Ok(Some(report));
        }
        let path = format!("elver-sim-{sim}-{}.jsonl", args.seed).into();
        let wanted = args.keep_going || args.run_time.is_some();
        Ok(wanted.then_some(Report { path, file: None }))
    }

    pub(crate) fn add(&mut self, found: &Found) -> anyhow::Result<()> {
        let line = serde_json::to_string(found)? + "\n";
        let path = self.path.clone();
        self.file()?.write_all(line.as_bytes()).with_context(|| cannot("write", &path))
    }

    /// Where it lies, if there is anything in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn file(&mut self) -> anyhow::Result<&mut File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let file = File::create(&self.path).with_context(|| cannot("make", &self.path))?;
                Ok(none.insert(file))
            }
        }
    }
}

/// Reads a report whose seeds are all of one kind of simulation.
pub(crate) fn read(path: &Path, sim: &str) -> anyhow::Result<Vec<Found>> {
    let file = File::open(path).with_context(|| cannot("open", path))?;
    let mut all = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| cannot("read", path))?;
        if line.trim().is_empty() {
            continue;
        }
        let at = || format!("{}, line {}", path.display(), index + 1);
        if all.len() >= LINES_MAX {
            bail!("{}: a report has {LINES_MAX} lines at most", at());
        }
        let found: Found = serde_json::from_str(&line)
            .with_context(|| format!("{}: not written by `elver sim … --report`", at()))?;
        if found.sim != sim {
            let kind = &found.sim;
            bail!("{}: of another kind of simulation; use `elver sim {kind} --replay`", at());
        }
        all.push(found);
    }
    Ok(all)
}

fn cannot(verb: &str, path: &Path) -> String {
    format!("cannot {verb} the report {}", path.display())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is found is in the file at once, and reads back as it was.
    #[test]
    fn what_is_written_is_read() {
        let path = std::env::temp_dir().join(format!("elver-report-{}.jsonl", std::process::id()));
        let mut report = Report { path: path.clone(), file: None };
        let options = json!({ "transport": ["dc"] });
        for seed in [7, u64::MAX] {
            report.add(&Found::new("rnic", seed, options.clone(), "a rule\nin two lines")).unwrap();
        }
        let all = read(&path, "rnic").unwrap();
        let seen: Vec<_> = all.iter().map(|found| (found.seed, &found.options)).collect();
        assert_eq!(seen, [(7, &options), (u64::MAX, &options)]);
        assert_eq!(all[0].failure, "a rule\nin two lines");
        assert!(read(&path, "node").unwrap_err().to_string().contains("sim rnic --replay"));
        std::fs::remove_file(&path).unwrap();
    }
}
