//! A directory for one run.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// Names that are tried before giving up.
const ATTEMPTS: u32 = 100;

/// All directories of this process, for the thread that ends it at a signal.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A directory that only this user enters, and that goes when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch> {
        let base = std::env::temp_dir();
        let mut salt = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos();
        for _ in 0..ATTEMPTS {
            // Short: the path of a Unix socket has 108 bytes.
            let path = base.join(format!("elver-{}-{salt:x}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    directories().push(path.clone());
                    return Ok(Scratch(path));
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => salt += 1,
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("cannot make {}; is TMPDIR writable?", path.display())
                    });
                }
            }
        }
        anyhow::bail!("no name is free for a directory in {}", base.display())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is a few files in the directory for temporary ones.
        let _ = fs::remove_dir_all(&self.0);
        directories().retain(|path| *path != self.0);
    }
}

/// Removes all directories of this process, which is about to end.
pub(super) fn remove_all() {
    for path in directories().drain(..) {
        let _ = fs::remove_dir_all(path);
    }
}

fn directories() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    DIRECTORIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
