//! A named scenario under an engine, from building what it needs to the report.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Pid;
use serde::Serialize;

use super::addresses::{GUESTS, HOST_ADDRESS, guest_address, guest_mac};
use super::cache::{Cache, fresh_directory};
use super::config::{self, Config, Engine};
use super::guest::Kernel;
use super::play::{self, Played};
use super::scenario::{self, Link, Scenario};
use super::{host, job, tap};

/// What a run came to.
#[derive(Serialize)]
pub struct Report {
    pub scenario: String,
    pub engine: String,
    pub ok: bool,
    /// Without what was built for it.
    pub seconds: f64,
    #[serde(flatten)]
    pub played: Played,
    /// What the check wrote.
    pub check: Option<String>,
    /// The run's directory, if it is kept.
    pub directory: Option<PathBuf>,
    /// In that directory: the capture, consoles, and what the guests left in /job/out.
    pub files: Vec<String>,
}

/// Runs a scenario. An error means the same as a report that is not ok: it could not even start.
pub fn run(
    cache: &Cache,
    config: &Config,
    engine: &Engine,
    scenario: &Scenario,
    keep: Option<&Path>,
) -> Result<Report> {
    for (tool, package) in &scenario.needs {
        host::need(&[(tool, package)])?;
    }
    let kernel = Kernel::build(cache, config, engine)?;
    let root = config::directory().parent().map(Path::to_owned).unwrap_or_default();
    let name = format!("{}-{}", scenario.name, engine.name);
    let directory = match keep {
        Some(keep) => {
            fs::create_dir_all(keep)?;
            fs::canonicalize(keep)?.join(&name)
        }
        None => run_directory(cache, &name)?,
    };
    anyhow::ensure!(
        !directory.to_string_lossy().contains([',', ' ']),
        "{}: neither kernel takes a path with a comma or a space",
        directory.display()
    );
    fresh_directory(&directory)?;

    let values = values(scenario, engine, &root, &directory);
    let mut report = Report {
        scenario: scenario.name.clone(),
        engine: engine.name.clone(),
        ok: false,
        seconds: 0.0,
        played: Played::default(),
        check: None,
        directory: Some(directory.clone()),
        files: Vec::new(),
    };
    if !scenario.prepare.is_empty() {
        let words = scenario::fill(&scenario.prepare, &values)?;
        host::output(&mut play::host_command(&words, &values)?).context("prepare")?;
    }
    let binaries = job::binaries(scenario, &root)?;
    for (index, guest) in GUESTS[..scenario.guests].iter().enumerate() {
        let environment = environment(scenario, engine, index)?;
        job::make(&directory.join(guest), scenario, &binaries, &environment)?;
    }
    let start = Instant::now();
    report.played = if scenario.link == Link::Tap {
        play_inside(scenario, engine, &directory)?
    } else {
        play::play(scenario, engine, &kernel, &directory, &values)?
    };
    report.seconds = start.elapsed().as_secs_f64();
    if !scenario.check.is_empty() && report.played.problems.is_empty() {
        let words = scenario::fill(&scenario.check, &values)?;
        let output =
            play::host_command(&words, &values)?.output().context("cannot run the check")?;
        let text = [output.stdout, output.stderr].concat();
        report.check = Some(String::from_utf8_lossy(&text).into_owned());
        if !output.status.success() {
            report.played.problems.push(format!("the check ended with {}", output.status));
        }
    }
    report.ok = report.played.problems.is_empty();
    report.files = files(&directory, scenario)?;
    if report.ok && keep.is_none() {
        fs::remove_dir_all(&directory)?;
        report.directory = None;
    }
    Ok(report)
}

/// The part of a run that is played in a network namespace; see `tap`.
pub fn inside(cache: &Cache, config: &Config, engine: &str, name: &str, run: &Path) -> Result<()> {
    let engine = config.engines(engine)?[0];
    let scenario = Scenario::read(name)?;
    let kernel = Kernel::build(cache, config, engine)?;
    let root = config::directory().parent().map(Path::to_owned).unwrap_or_default();
    tap::set_up(scenario.mtu)?;
    let values = values(&scenario, engine, &root, run);
    let played = play::play(&scenario, engine, &kernel, run, &values)?;
    Ok(fs::write(run.join("played.json"), serde_json::to_vec(&played)?)?)
}

fn play_inside(scenario: &Scenario, engine: &Engine, run: &Path) -> Result<Played> {
    let directory = run.display().to_string();
    let patience =
        Duration::from_secs(scenario.timeout.into()) * engine.slowness + Duration::from_secs(30);
    let arguments = ["lab", "inside", &scenario.name, "--engine", &engine.name, &directory];
    tap::run_inside(&arguments, patience)?;
    let path = run.join("played.json");
    let played = serde_json::from_str(&super::host::read(&path)?)?;
    fs::remove_file(path)?;
    Ok(played)
}

/// What a scenario's commands may name in braces.
fn values(
    scenario: &Scenario,
    engine: &Engine,
    root: &Path,
    run: &Path,
) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut set = |name: &str, value: String| values.insert(name.to_owned(), value);
    set("root", root.display().to_string());
    set("scenario", scenario.directory().display().to_string());
    set("run", run.display().to_string());
    set("capture", run.join("capture.pcap").display().to_string());
    set("engine", engine.name.clone());
    set("host_ip", HOST_ADDRESS.into());
    set("guest_ip", guest_address(0));
    set("guest_mac", guest_mac(0));
    for (index, name) in GUESTS[..scenario.guests].iter().enumerate() {
        set(&format!("guest_ip.{name}"), guest_address(index));
        set(&format!("guest_mac.{name}"), guest_mac(index));
    }
    values
}

/// What a guest's script finds in its environment.
fn environment(
    scenario: &Scenario,
    engine: &Engine,
    index: usize,
) -> Result<BTreeMap<String, String>> {
    let mut environment = BTreeMap::new();
    let mut set = |name: &str, value: String| environment.insert(name.to_owned(), value);
    set("LAB_IP", guest_address(index));
    set("LAB_HOST_IP", HOST_ADDRESS.into());
    set("LAB_RDMA", engine.rdma(&scenario.rdma)?.join(" "));
    if scenario.guests == 2 {
        set("LAB_PEER_IP", guest_address(1 - index));
    }
    Ok(environment)
}

/// A directory in the cache. Those of earlier runs of the same name go, unless they run still.
fn run_directory(cache: &Cache, name: &str) -> Result<PathBuf> {
    let runs = cache.directory.join("runs");
    fs::create_dir_all(&runs)?;
    for entry in fs::read_dir(&runs)? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = file.strip_prefix(&format!("{name}.")).and_then(|pid| pid.parse().ok());
        let Some(owner) = owner.and_then(Pid::from_raw) else { continue };
        if rustix::process::test_kill_process(owner).is_err() {
            // Somebody else may have been faster.
            let _ = fs::remove_dir_all(path);
        }
    }
    Ok(runs.join(format!("{name}.{}", std::process::id())))
}

fn files(directory: &Path, scenario: &Scenario) -> Result<Vec<String>> {
    let mut files = Vec::new();
    if directory.join("capture.pcap").exists() {
        files.push("capture.pcap".to_owned());
    }
    for guest in &GUESTS[..scenario.guests] {
        files.push(format!("console-{guest}.log"));
        files.extend(job::left_behind(directory, &directory.join(guest))?);
    }
    Ok(files)
}

impl Report {
    /// What a person wants to know: one line if all is well, else everything that was said.
    pub fn text(&self, verbose: bool) -> String {
        let Report { scenario, engine, seconds, played, .. } = self;
        let verdict = if self.ok { "ok    " } else { "FAILED" };
        let mut text = format!("{verdict} {scenario} on {engine}, {seconds:.2} s");
        match (played.frames, played.frames_dropped) {
            (Some(frames), Some(0)) => text += &format!(", {frames} frames"),
            (Some(frames), Some(dropped)) => {
                text += &format!(", {frames} frames, {dropped} deliveries dropped");
            }
            _ => {}
        }
        text.push('\n');
        for problem in &played.problems {
            text += &format!("  {problem}\n");
        }
        if !self.ok || verbose {
            for guest in &played.guests {
                text += &quoted(&format!("guest {}", guest.name), &guest.output);
            }
            if let Some(host) = &played.host {
                text += &quoted("host program", &host.output);
            }
            if let Some(check) = &self.check {
                text += &quoted("check", check);
            }
        }
        if let Some(directory) = &self.directory {
            text += &format!("  kept: {} with {}\n", directory.display(), self.files.join(", "));
        }
        text
    }
}

fn quoted(title: &str, output: &str) -> String {
    let lines: String = output.lines().map(|line| format!("  | {line}\n")).collect();
    format!("  {title}:\n{lines}")
}
