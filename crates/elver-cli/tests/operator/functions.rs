//! `elver faas` as its operator uses it: a configuration that is checked and served, functions that are invoked and listed.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{elver, is_root, run};

const HANDLERS: &str = "\
def doubled(event, context):
    return 2 * event

def fails(event, context):
    raise ValueError(f'no {event}')
";

/// An orchestrator, ended with its test.
struct Serving {
    child: Child,
}

impl Serving {
    /// Nothing where functions in Python cannot start, which the other one says.
    fn start(config: &str) -> Result<Serving, String> {
        let command = elver().args(["faas", "serve", config]).stdout(Stdio::piped()).spawn();
        let mut child = command.unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("ready at ") {
            return Ok(Serving { child });
        }
        child.wait().unwrap();
        Err(line)
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn write(directory: &Path) -> String {
    let code = directory.join("code");
    fs::create_dir(&code).unwrap();
    for path in [directory, &code] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(code.join("numbers_of.py"), HANDLERS).unwrap();
    let mut text = format!(
        "[platform]\nruntime = [\"crun\"]\nstate = {:?}\n[owners.ivan]\nuid = 60997\n",
        directory.join("state")
    );
    for function in ["doubled", "fails"] {
        text += &format!(
            "[functions.{function}]\nowner = \"ivan\"\ncode = {code:?}\nhandler = \"numbers_of.{function}\"\n"
        );
    }
    let file = directory.join("functions.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_string()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn functions_are_served_invoked_and_listed() {
    if !is_root() {
        return println!("skipped: only root makes containers");
    }
    let directory = tempfile::tempdir().unwrap();
    let config = write(directory.path());
    let checked = run(&["faas", "serve", "--check", &config]);
    assert!(
        checked.status.success() && text(&checked) == "2 functions of 1 owners\n",
        "{checked:?}"
    );
    let state = directory.path().join("state");
    let state = state.to_str().unwrap();
    let asked = |words: &[&str]| run(&[&["faas"], words, &["--state", state]].concat());

    let nobody = asked(&["list"]);
    assert!(!nobody.status.success() && said(&nobody).contains(state), "{nobody:?}");
    let serving = Serving::start(&config).unwrap();
    let listed = asked(&["list"]);
    assert!(text(&listed).contains("starts cold"), "{listed:?}");

    let answer = asked(&["invoke", "doubled", "--data", "21"]);
    assert_eq!((answer.status.success(), text(&answer).as_str()), (true, "42\n"), "{answer:?}");
    let answers = asked(&["invoke", "doubled", "--data", "4", "--count", "2", "--json"]);
    for row in rows(&answers) {
        assert_eq!((&row["function"], &row["answer"]), (&"doubled".into(), &8.into()), "{row}");
        assert_eq!((&row["start"], &row["is_error"]), (&"fork".into(), &false.into()), "{row}");
        let [launch, total] = ["launch_us", "total_us"].map(|key| row[key].as_u64().unwrap());
        assert!(launch > 0 && total >= launch, "{row}");
    }
    assert_eq!(rows(&answers).len(), 2);
    let table = asked(&["invoke", "doubled", "--data", "4", "--count", "3"]);
    assert_eq!(text(&table).matches("fork").count(), 3, "{table:?}");

    let failed = asked(&["invoke", "fails", "--data", "\"bread\""]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(said(&failed).contains("no bread"), "{failed:?}");
    let wrong = asked(&["invoke", "doubled", "--data", "{"]);
    assert!(said(&wrong).contains("the event is no JSON"), "{wrong:?}");
    let unknown = asked(&["invoke", "tripled"]);
    assert!(!unknown.status.success() && said(&unknown).contains("tripled"), "{unknown:?}");
    let mut piped = elver()
        .args(["faas", "invoke", "doubled", "--data", "-", "--state", state])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(b"50").unwrap();
    assert_eq!(text(&piped.wait_with_output().unwrap()), "100\n");

    let listed = asked(&["list", "--json"]);
    let listing: Value = serde_json::from_str(&text(&listed)).unwrap();
    let names: Vec<&str> =
        listing["functions"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(names, ["doubled", "fails"]);
    let of = |name: &str| {
        let all = listing["processes"].as_array().unwrap();
        all.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{listing}"))
    };
    // None is under way.
    assert_eq!((&of("doubled")["owner"], &of("doubled")["requests"]), (&"ivan".into(), &0.into()));
    assert!(text(&asked(&["list"])).contains("can be forked"));
    serving.end();
    assert!(!asked(&["list"]).status.success(), "it has gone");
}
