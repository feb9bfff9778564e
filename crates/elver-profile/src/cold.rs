//! Cold processes: a program of its own for each run, with or without the fast library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use elver_console::Failure;

use crate::calls::{self, Made, Plan};

/// The fast library's file, and where it stands from a program's directory: where it is built, and installed.
const LIBRARY: [&str; 2] = ["libelver_fastverbs.so", "../lib/elver/libelver_fastverbs.so"];
/// What makes this program make calls, and the command and options that say which.
pub(crate) const CALLS: [&str; 4] = ["verbs-profile", "--calls", "--since", "--device"];

/// How such a process is started.
#[derive(Clone, Debug)]
pub struct Cold {
    /// This program.
    pub program: PathBuf,
    /// The device to open; the first if none is named.
    pub device: Option<String>,
    /// The library to preload, and its cache.
    pub fast: Option<(PathBuf, PathBuf)>,
    /// What `ELVER_FASTVERBS` says.
    pub mode: &'static str,
}

impl Cold {
    /// The command of a process that makes these calls. What the environment says to the fast library is taken away.
    pub fn command(&self, plan: &Plan) -> Command {
        let mut command = Command::new(&self.program);
        let [name, calls, since, device] = CALLS;
        command
            .args([name, calls])
            .arg(plan.to_string())
            .arg(since)
            .arg(calls::now_ns().to_string());
        if let Some(own) = &self.device {
            command.arg(device).arg(own);
        }
        for variable in
            ["LD_PRELOAD", "ELVER_FASTVERBS", "ELVER_FASTVERBS_WARM", "MLX5_STALL_CQ_POLL"]
        {
            command.env_remove(variable);
        }
        if let Some((library, cache)) = &self.fast {
            command.env("LD_PRELOAD", library).env("ELVER_FASTVERBS_CACHE", cache);
            command.env("ELVER_FASTVERBS", self.mode);
        }
        command
    }

    /// Makes the calls, and returns what they took.
    ///
    /// # Errors
    /// One failed.
    pub fn run(&self, plan: &Plan) -> Result<Made> {
        let mut command = self.command(plan);
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim().trim_start_matches("elver: "));
        calls::parse(&output.stdout)
    }
}

/// The fast library: the one that was asked for, or the one that belongs to this program.
///
/// # Errors
/// There is none.
pub fn library(asked: Option<&Path>, program: &Path) -> Result<PathBuf, Failure> {
    let beside = program.parent().unwrap_or(Path::new("."));
    let places: Vec<PathBuf> = match asked {
        Some(asked) => vec![asked.to_path_buf()],
        None => LIBRARY.iter().map(|place| beside.join(place)).collect(),
    };
    // The loader would take a name without a slash for one to look for.
    let found = places.iter().find_map(|place| std::fs::canonicalize(place).ok());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::unusable(format!(
            "the fast library is not in {}; it is built by `cargo build --release -p elver-fastverbs`, and --library says \
             where it is",
            places.join(" nor ")
        ))
    })
}
