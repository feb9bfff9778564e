//! The examples of a crate, run as its users run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

use crate::TestNode;

/// Name of the variable by which a process finds its node.
const NODE_AT: &str = "ELVER_SOCKET";

/// The examples of a crate. One of these for a test program: the first that asks for an example has them built.
#[derive(Debug)]
pub struct Examples {
    package: &'static str,
    folder: &'static str,
    features: &'static str,
    built: Once,
}

impl Examples {
    /// Of the package of this name, in this folder (`CARGO_MANIFEST_DIR`), with features that they need, between commas.
    pub const fn new(
        package: &'static str,
        folder: &'static str,
        features: &'static str,
    ) -> Examples {
        Examples { package, folder, features, built: Once::new() }
    }

    /// Names of all there are, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = files(&Path::new(self.folder).join("examples"), false)
            .iter()
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A built one: it lies beside this program, in the folder that cargo has for them.
    pub fn program(&self, name: &str) -> PathBuf {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap().join("examples");
        self.built.call_once(|| {
            // `cargo test` has built them; `cargo test --test all` alone does not.
            if !self.is_built(&folder) {
                self.build(own.to_string_lossy().contains("/release/"));
            }
        });
        folder.join(name)
    }

    /// One beside a node, as a command. If it waits for what never comes it is ended: 124 is its exit code then.
    pub fn command(&self, node: &TestNode, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("300").arg(self.program(name)).args(arguments).env(NODE_AT, &node.path);
        command
    }

    /// Runs one beside a node to its end, which is a good one; what it says.
    ///
    /// # Panics
    /// If it fails, with all that it said.
    pub fn run(&self, node: &TestNode, name: &str, arguments: &[&str]) -> String {
        let output = self.command(node, name, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {:?}\n{said}{errors}", output.status);
        said
    }

    fn build(&self, release: bool) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples", "--package", self.package]);
        cargo.args(["--features", self.features]);
        if release {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the examples cannot be built");
    }

    /// Whether each program is there, and no older than the examples' sources and the library's.
    fn is_built(&self, folder: &Path) -> bool {
        // The library may have texts of Python in it.
        let folders = ["src", "examples", "python"].map(|name| Path::new(self.folder).join(name));
        let sources = folders.iter().filter(|folder| folder.is_dir());
        let sources = sources.flat_map(|folder| files(folder, true));
        let newest = sources.filter_map(|path| changed(&path)).max();
        let fresh = |name| changed(&folder.join(name)).is_some_and(|built| Some(built) >= newest);
        self.names().iter().all(fresh)
    }
}

/// Runs each example beside a node of its own, in the group that stands behind its name, with the same arguments; each
/// ends well and says what stands last. And no example is left out: one that nobody runs rots.
#[macro_export]
macro_rules! examples {
    ($examples:expr, $place:expr, $arguments:expr; $($name:ident, $group:expr, $says:expr;)*) => {
        $(#[test]
        fn $name() {
            let node = $crate::TestNode::start($place.config($group, 1));
            let said = $examples.run(&node, stringify!($name), &$arguments);
            assert!(said.contains($says), "{} says {said:?}", stringify!($name));
        })*

        #[test]
        fn all_of_them_are_run() {
            let mut run = vec![$(stringify!($name)),*];
            run.sort();
            assert_eq!(run, $examples.names());
        }
    };
}

/// The files in a folder; also those in folders in it, if they are asked for.
fn files(folder: &Path, deep: bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true if deep => files(&path, deep),
            true => Vec::new(),
            false => vec![path],
        })
        .collect()
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|data| data.modified()).ok()
}
