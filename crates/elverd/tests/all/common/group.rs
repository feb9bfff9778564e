//! Control groups.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::daemon::clean;
use super::wait_for;

/// A control group that limits memory; it goes with the value.
pub struct Group(pub PathBuf);

impl Group {
    /// One of so many bytes, where tests may make one.
    pub fn new(bytes: u64) -> Option<Group> {
        let number = std::process::id();
        for (parent, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let path = Path::new(parent).join(format!("elver-test-{number}"));
            if !Path::new(parent).join("cgroup.procs").exists()
                || std::fs::create_dir(&path).is_err()
            {
                continue;
            }
            let group = Group(path);
            if std::fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// A daemon in it.
    pub fn elverd(&self, config: &Path) -> Command {
        let script =
            format!("echo $$ >{} && exec \"$0\" \"$@\"", self.0.join("cgroup.procs").display());
        let mut command = clean(Command::new("bash"));
        command.args(["-c", &script, env!("CARGO_BIN_EXE_elverd"), "--config"]).arg(config);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The system takes a moment to forget who was in it.
        wait_for("the group to go", || std::fs::remove_dir(&self.0).ok());
    }
}
