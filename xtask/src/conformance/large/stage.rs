//! What the large programs are run with, and what they come to.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::installed::Installed;
use crate::conformance::place::Place;
use crate::conformance::process::{Ended, Runner, last_line};

/// How long a program moves data to be measured, in seconds.
pub(super) const SECONDS: &str = "3";

/// What each program is run with.
pub(super) struct Stage<'a> {
    pub(super) runner: &'a Runner,
    pub(super) place: &'a Place,
    pub(super) installed: &'a Installed,
    /// Where our own words for these programs are: programs in Python, mostly.
    pub(super) words: PathBuf,
    /// A folder.
    pub(super) scratch: PathBuf,
}

/// What a program came to.
#[derive(Default)]
pub(super) struct Said {
    /// What it told of its speed.
    pub(super) measured: String,
    /// Why it was not run.
    pub(super) skipped: Option<&'static str>,
}

impl Stage<'_> {
    /// The words that run a program of our own, with an interpreter.
    pub(super) fn script(
        &self,
        python: &Path,
        name: &str,
        arguments: &[&str],
    ) -> Result<Vec<String>> {
        let script = self.words.join(name);
        let path = |path: &Path| path.to_str().map(str::to_string).context("a path of UTF-8");
        let mut words = vec![path(python)?, path(&script)?];
        words.extend(arguments.iter().map(|word| word.to_string()));
        Ok(words)
    }
}

/// What succeeded, or its last words.
pub(super) fn succeeded(what: &str, ended: &Ended) -> Result<()> {
    anyhow::ensure!(ended.status.success(), "{what}: {}: {}", ended.status, last_line(&ended.said));
    Ok(())
}

pub(super) fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
