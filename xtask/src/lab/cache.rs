//! Where what was built once is kept: an entry is a directory named by a hash of all that it was made from.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;

use super::progress::Step;

pub struct Cache {
    pub directory: PathBuf,
}

impl Cache {
    /// `$ELVER_LAB_CACHE`, or `elver/lab` in the user's cache directory.
    pub fn open() -> Result<Cache> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = match (variable("ELVER_LAB_CACHE"), variable("XDG_CACHE_HOME")) {
            (Some(own), _) => PathBuf::from(own),
            (None, Some(xdg)) => PathBuf::from(xdg).join("elver/lab"),
            (None, None) => PathBuf::from(
                variable("HOME").context("none of ELVER_LAB_CACHE, XDG_CACHE_HOME, HOME is set")?,
            )
            .join(".cache/elver/lab"),
        };
        fs::create_dir_all(&directory).with_context(|| {
            format!("cannot make {}; ELVER_LAB_CACHE names another place", directory.display())
        })?;
        let directory = fs::canonicalize(&directory)?;
        Ok(Cache { directory })
    }

    /// Builds one thing at a time, whoever else uses the same cache.
    pub fn lock(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let _step = Step::long("waiting for another build of the lab to end");
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(file)
    }

    /// The entry `NAME-HASH`, made by `build` in an empty directory if it is not there.
    pub fn entry(
        &self,
        name: &str,
        inputs: &[&str],
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let entry = self.directory.join(format!("{name}-{:016x}", hash(inputs)));
        if entry.is_dir() {
            return Ok(entry);
        }
        let _lock = self.lock()?;
        if entry.is_dir() {
            return Ok(entry);
        }
        // Complete or not there: what a build that was interrupted leaves has another name.
        let partial = entry.with_extension("partial");
        fresh_directory(&partial)?;
        build(&partial)?;
        fs::rename(&partial, &entry)
            .with_context(|| format!("cannot rename {}", partial.display()))?;
        Ok(entry)
    }
}

/// Makes an empty directory.
pub fn fresh_directory(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

/// FNV-1a over the inputs and their lengths. It tells versions of files apart; nobody attacks it.
fn hash(inputs: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut eat = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for input in inputs {
        eat(&input.len().to_le_bytes());
        eat(input.as_bytes());
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_do_not_run_together() {
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["a"]), hash(&["a", ""]));
        assert_eq!(hash(&["a", "b"]), hash(&["a", "b"]));
    }

    #[test]
    fn an_entry_is_built_once_and_never_half() {
        let directory = std::env::temp_dir().join(format!("elver-lab-test-{}", std::process::id()));
        fresh_directory(&directory).unwrap();
        let cache = Cache { directory: directory.clone() };
        let failed = cache.entry("x", &["1"], |path| {
            fs::write(path.join("half"), "")?;
            anyhow::bail!("no")
        });
        assert!(failed.is_err());
        let entry =
            cache.entry("x", &["1"], |path| Ok(fs::write(path.join("whole"), "")?)).unwrap();
        assert!(entry.join("whole").exists() && !entry.join("half").exists());
        let again = cache.entry("x", &["1"], |_| panic!("built twice")).unwrap();
        assert_eq!(entry, again);
        fs::remove_dir_all(directory).unwrap();
    }
}
