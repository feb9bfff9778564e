use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Fewer bytes can be guessed from what a connection shows.
const SECRET_BYTES_MIN: usize = 16;
/// A file longer than this is no secret.
const SECRET_BYTES_MAX: usize = 4_096;
/// Permissions of a group and of others.
const OTHERS: u32 = 0o077;

/// What all nodes of a cluster know, and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// A hash of what was given, so that keys are of one length.
    key: [u8; 32],
}

/// Why a file is no secret.
#[derive(Debug, Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read the cluster's secret {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// It is no file.
    #[error("the cluster's secret {path} is not a regular file")]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// It is another user's, who can change it.
    #[error(
        "the cluster's secret {path} belongs to user {owner}; it must belong to root or to user \
         {user}, who runs this node"
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it may be.
        user: u32,
    },
    /// Others may read or write it.
    #[error(
        "permissions {mode:04o} of the cluster's secret {path} are too open: others could read it; \
         chmod 600 {path}"
    )]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It has too few bytes, or too many.
    #[error(
        "the cluster's secret {path} has {given} bytes, and {SECRET_BYTES_MIN} to \
         {SECRET_BYTES_MAX} are allowed; `head -c 32 /dev/urandom | base64` makes a good one"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// How many bytes it has, without space around them.
        given: usize,
    },
}

impl Secret {
    /// Reads a file that nobody but this user, or root, may read or write. White space at its end
    /// and its beginning does not count, so that an editor's newline makes no difference.
    ///
    /// # Errors
    ///
    /// [`SecretError`] says what is wrong with the file, and what helps.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let path = || path.to_path_buf();
        let refused = |reason| SecretError::Read { path: path(), reason };
        // Without waiting for the other end of what may be a pipe.
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut options = File::options();
        let file = options.read(true).custom_flags(no_wait).open(path()).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        if !metadata.is_file() {
            return Err(SecretError::Kind { path: path() });
        }
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != 0 && owner != user {
            return Err(SecretError::Owner { path: path(), owner, user });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(SecretError::Mode { path: path(), mode });
        }
        let mut bytes = Vec::new();
        // One more than may be, so that too many are noticed.
        let most = SECRET_BYTES_MAX as u64 + 1;
        file.take(most).read_to_end(&mut bytes).map_err(refused)?;
        let bytes = bytes.trim_ascii();
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError::Length { path: path(), given: bytes.len() });
        }
        Ok(Secret::new(bytes))
    }

    /// A secret of these bytes, however few.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret { key: Sha256::digest(bytes).into() }
    }

    pub(super) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
