//! Each example runs, as a process beside a daemon's socket, and ends well.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use common::{TestNode, config};

/// A built example: beside this program, in the folder that cargo has for them.
fn example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    let folder = profile.join("examples");
    BUILT.call_once(|| {
        // `cargo test` has built them; `cargo test --test examples` alone does not.
        if is_built(&folder) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--examples",
            "--package",
            "elver-stream",
            "--features",
            "tokio",
        ]);
        if program.to_string_lossy().contains("/release/") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the examples cannot be built");
    });
    folder.join(name)
}

/// Whether each example's program is there, and no older than its source and the library's.
fn is_built(folder: &Path) -> bool {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = |name: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(crate_root.join(name)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let (library, examples) = (sources("src"), sources("examples"));
    let newest = library.iter().chain(&examples).filter_map(|path| changed(path)).max();
    examples.iter().all(|source| {
        let program = folder.join(source.file_stem().unwrap());
        changed(&program).is_some_and(|built| Some(built) >= newest)
    })
}

fn runs(group: u8, name: &str, says: &str) {
    let node = TestNode::start(config(group, 1));
    // One that waits for what never comes is ended: 124 is its exit code then.
    let mut command = Command::new("timeout");
    command.arg("300").arg(example(name));
    // Those that count rounds take their number.
    let output = command.arg("2000").env(elver::SOCKET_VARIABLE, &node.path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {:?}\n{said}{errors}", output.status);
    assert!(said.contains(says), "{name} says {said:?}");
}

macro_rules! examples {
    ($($name:ident, $group:expr, $says:expr;)*) => {
        $(#[test]
        fn $name() {
            runs($group, stringify!($name), $says);
        })*

        /// An example that nobody runs rots.
        #[test]
        fn all_of_them_are_run() {
            let mut run = vec![$(stringify!($name).to_string()),*];
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
            let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut there: Vec<_> =
                files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
            run.sort();
            there.sort();
            assert_eq!(run, there);
        }
    };
}

examples! {
    echo_lines, 70, "2000 lines, ";
    echo_epoll, 71, "80000 bytes of 10 streams";
    echo_tasks, 72, "40000 bytes of 5 streams";
}
