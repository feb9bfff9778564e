//! The built commands, and a daemon beside them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The longest that anything here may take.
pub const WAIT: Duration = Duration::from_secs(60);

pub fn elver() -> Command {
    daemon();
    let mut command = Command::new(env!("CARGO_BIN_EXE_elver"));
    command.env_remove("ELVER_SOCKET");
    command
}

pub fn run(arguments: &[&str]) -> Output {
    elver().args(arguments).output().unwrap()
}

pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// `elverd` beside `elver`, built if this package's tests are built alone.
fn daemon() -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_elver")).with_file_name("elverd");
    BUILT.call_once(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "elverd"]);
        if program.parent().is_some_and(|directory| directory.ends_with("release")) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "elverd cannot be built");
    });
    program
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Processes whose command line names such a directory, and such directories.
pub fn leftovers(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(name) {
            found.push(line);
        }
    }
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(name) {
            found.push(file);
        }
    }
    found
}

/// A daemon, ended with its test.
pub struct Daemon {
    pub child: Child,
    pub directory: PathBuf,
}

impl Daemon {
    pub fn start(address: &str) -> Daemon {
        Daemon::start_with(address, "meta.serve = true")
    }

    /// With other lines in its configuration.
    pub fn start_with(address: &str, more: &str) -> Daemon {
        let name = format!("elver-status-{}-{address}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("elverd.toml");
        let socket = directory.join("elverd.sock");
        let text = format!(
            "node.address = \"{address}\"\nsocket.path = {socket:?}\n\
             metrics.listen = \"\"\n{more}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut child = Command::new(daemon())
            .arg("--config")
            .arg(&file)
            .env_remove("ELVER_SOCKET")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(line.starts_with("elverd ready"), "{line}");
        Daemon { child, directory }
    }

    pub fn socket(&self) -> String {
        self.directory.join("elverd.sock").display().to_string()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}
