//! Clients that are processes of their own, and where tests may do so, another user's.

use std::path::Path;

use elver_testkit::{Launch, Process, copy, is_root};

use super::daemon::Directory;

/// The user of clients that nobody trusts: another, if the tests are root's.
pub fn nobody() -> Option<u32> {
    is_root().then_some(65_534)
}

/// Runs a test of this program as nobody's process.
pub fn start(directory: &Directory, socket: &Path, test: &str, knows: &str) -> Process {
    let launch = launch(directory, socket, test, knows);
    match nobody() {
        Some(user) => launch.user(user).start(),
        None => launch.start(),
    }
}

/// Runs a test of this program as a process that a command starts: as root's, if that makes it no
/// other's.
pub fn start_by(
    by: &[&str],
    directory: &Directory,
    socket: &Path,
    test: &str,
    knows: &str,
) -> Process {
    launch(directory, socket, test, knows).by(by).start()
}

fn launch(directory: &Directory, socket: &Path, test: &str, knows: &str) -> Launch {
    // Where the tests were built nobody may have no business.
    let program = directory.path.join("client");
    if !program.exists() {
        copy(&std::env::current_exe().unwrap(), &program);
    }
    Launch::new(test, socket).program(&program).knows(knows)
}
