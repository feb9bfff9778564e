//! A directory for one run.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::signals;

/// A directory that only this user enters, and that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one.
    ///
    /// # Errors
    /// If none can be made where temporary files go.
    pub fn new() -> Result<Scratch> {
        // A signal leaves none behind, and none is made before that is so.
        signals::watch()?;
        // Short: the path of a Unix socket has 108 bytes.
        let prefix = format!("elver-{}-", std::process::id());
        let made = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .context("cannot make a directory for sockets and files; is TMPDIR writable?")?;
        // Ours to remove: by whichever thread ends this process.
        let path = made.keep();
        signals::removes(path.clone());
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is a few files in the directory for temporary ones.
        let _ = fs::remove_dir_all(&self.0);
        signals::removes_no_more(&self.0);
    }
}
