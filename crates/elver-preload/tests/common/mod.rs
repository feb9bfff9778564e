//! The library, and programs over it, each for at most [`LIMIT`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The longest that a program may take, in seconds.
const LIMIT: &str = "300";

/// The folder with the library, linked once.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
            let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
            fs::create_dir_all(&dir).unwrap();
            // Where this test stands: `target/PROFILE/deps`. Cargo gives the archive to builds alone.
            let own = std::env::current_exe().unwrap();
            let target: PathBuf = own.ancestors().nth(3).unwrap().to_owned();
            let built = Command::new(env!("CARGO"))
                .args(["build", "-q", "-p", "elver-preload", "--target-dir"])
                .arg(&target)
                .current_dir(crate_dir)
                .output()
                .unwrap();
            succeeded("cargo build", &built);
            let linked = Command::new(crate_dir.join("link.sh"))
                .arg(target.join("debug/libelver_preload.a"))
                .arg(dir.join("libibverbs.so.1"))
                .output()
                .unwrap();
            succeeded("link.sh", &linked);
            dir
        })
        .as_path()
}

pub fn succeeded(what: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{said}\n{complaint}", output.status);
    said
}

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", LIMIT]).args(words).env("LD_LIBRARY_PATH", library());
    // On a machine that has too much to do a process may get no core for that long.
    command.env("ELVER_DIRECT_PATIENCE_MS", "20000");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
