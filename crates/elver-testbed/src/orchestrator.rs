//! An orchestrator of functions (`elver faas serve`) in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use elver_console::Failure;
use rustix::process::{Pid, Signal, kill_process};

use crate::programs::{Programs, end_with_parent};
use crate::scratch::Scratch;
use crate::signals::{self, Guest};

/// The host's, which containers see.
const PYTHON: &str = "/usr/bin/python3";

/// A running one. It takes its containers with it when it ends, so that the next one begins cold; and
/// it ends with this process, however that ends.
#[derive(Debug)]
pub struct Orchestrator {
    process: Child,
    _guest: Guest,
}

impl Orchestrator {
    /// Asks for all that containers with functions in Python need, before any is started.
    ///
    /// # Errors
    /// What is missing, and the one command that makes it.
    pub fn check(programs: &Programs, runtime: &str) -> Result<(), Failure> {
        let built = [("elver-init", programs.init()), ("libelver_python.so", programs.module())];
        let is_missing = built.into_iter().filter(|(_, found)| found.is_none());
        let unbuilt: Vec<_> = is_missing.map(|(name, _)| name).collect();
        let mut absent = Vec::new();
        if !is_program(runtime) {
            absent.push(runtime);
        }
        if !is_program(PYTHON) {
            absent.push("python3");
        }
        match lack(programs.own(), &unbuilt, &absent) {
            Some(lack) => Err(Failure::unusable(lack)),
            None => Ok(()),
        }
    }

    /// A directory for the files of orchestrators. A signal that ends this process ends them first, and
    /// then removes it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn place() -> Result<Scratch> {
        signals::watch()?;
        Scratch::new()
    }

    /// Starts `elver` with a configuration of functions, and waits until it takes requests.
    ///
    /// # Errors
    /// If it does not start; it has said why on standard error.
    pub fn start(elver: &Path, config: &Path) -> Result<Orchestrator> {
        let mut command = Command::new(elver);
        command.args(["faas", "serve"]).arg(config).stdout(Stdio::piped());
        // Its containers end with it, and not with a signal that it does not see.
        end_with_parent(&mut command, Signal::TERM);
        let process = command.spawn().context("cannot start an orchestrator")?;
        let guest = Guest::of(&process)?;
        let mut orchestrator = Orchestrator { process, _guest: guest };
        let mut ready = String::new();
        if let Some(said) = orchestrator.process.stdout.take() {
            BufReader::new(said).read_line(&mut ready)?;
        }
        ensure!(ready.starts_with("ready"), "the orchestrator did not start; it has said why");
        Ok(orchestrator)
    }

    /// Ends it as its user would, and with it all containers.
    ///
    /// # Errors
    /// If it ends otherwise than well.
    pub fn end(mut self) -> Result<()> {
        self.terminate();
        let status = self.process.wait()?;
        ensure!(status.success(), "the orchestrator ended with {status}");
        Ok(())
    }

    fn terminate(&self) {
        // One that has ended needs no signal.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
    }
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.terminate();
            let _ = self.process.wait();
        }
    }
}

/// Whether there is a program of this path, or of this name in PATH.
fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join(name).is_file())
}

/// What to tell of programs that are not built, beside `own`, and of those that are not installed.
fn lack(own: &Path, unbuilt: &[&str], absent: &[&str]) -> Option<String> {
    let missing: Vec<_> = unbuilt
        .iter()
        .map(|name| format!("no `{name}` beside {}", own.display()))
        .chain(absent.iter().map(|name| format!("no `{name}` on this machine")))
        .collect();
    let mut commands = Vec::new();
    if !unbuilt.is_empty() {
        commands.push("cargo build --release -p elver-faas -p elver-python".to_string());
    }
    let packages: Vec<_> = absent.iter().filter_map(|name| package(name)).collect();
    if !packages.is_empty() {
        commands.push(format!("sudo apt install {}", packages.join(" ")));
    }
    let (missing, commands) = (missing.join(", "), commands.join(" && "));
    let make =
        if commands.is_empty() { String::new() } else { format!("; make it by\n  {commands}") };
    (!missing.is_empty())
        .then(|| format!("functions in Python cannot start: there is {missing}{make}"))
}

/// Debian's package of a program, if it is one that we know: `docker` is another one's name there.
fn package(program: &str) -> Option<&str> {
    match program {
        "docker" => Some("docker.io"),
        "crun" | "runc" | "podman" | "python3" => Some(program),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_one_command() {
        let own = Path::new("/x/elver");
        assert_eq!(lack(own, &[], &[]), None);
        assert_eq!(
            lack(own, &["libelver_python.so"], &["crun"]).unwrap(),
            "functions in Python cannot start: there is no `libelver_python.so` beside /x/elver, no `crun` on this \
             machine; make it by\n  cargo build --release -p elver-faas -p elver-python && sudo apt install crun"
        );
        let absent = lack(own, &[], &["crun"]).unwrap();
        assert!(absent.ends_with("\n  sudo apt install crun"), "{absent}");
        let absent = lack(own, &[], &["nosuch"]).unwrap();
        assert!(absent.ends_with("there is no `nosuch` on this machine"), "{absent}");
        let absent = lack(own, &[], &["docker"]).unwrap();
        assert!(
            absent
                .ends_with("no `docker` on this machine; make it by\n  sudo apt install docker.io"),
            "{absent}"
        );
    }

    #[test]
    fn programs_are_found_by_path_and_by_name() {
        assert!(is_program("/bin/sh") && is_program("sh"));
        assert!(!is_program("/bin/there-is-none") && !is_program("there-is-none"));
        assert!(is_program("src/orchestrator.rs"), "a path is the working directory's, not PATH's");
    }
}
