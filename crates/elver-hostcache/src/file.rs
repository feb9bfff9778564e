//! The file of a cache: who may have written it, and how it is replaced.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::HostCache;
use crate::format::{self, FILE_MAX, Malformed};

/// Where it is, if nobody says otherwise.
pub const PATH: &str = "/var/cache/elver/verbs";
/// Who says otherwise.
pub const VARIABLE: &str = "ELVER_FASTVERBS_CACHE";

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is none, or it cannot be read.
    #[error("{0}")]
    Unreadable(io::Error),
    /// Neither root's nor the process's own.
    #[error("it belongs to user {0}, and only root's or one's own is believed")]
    Owner(u32),
    /// Others can write it.
    #[error("its mode is {0:o}: others than its owner can write it")]
    Writable(u32),
    /// A directory, a device, a pipe.
    #[error("it is no regular file")]
    Kind,
    /// It is no cache.
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

impl Refused {
    /// Whether there is merely none.
    pub fn is_absent(&self) -> bool {
        matches!(self, Refused::Unreadable(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The path that `variable` has, or the usual one.
pub fn path(variable: Option<&OsStr>) -> PathBuf {
    variable.filter(|path| !path.is_empty()).map_or_else(|| PATH.into(), PathBuf::from)
}

/// Reads the cache: four system calls.
///
/// # Errors
/// There is none, somebody else could have written it, or it is none.
pub fn read(path: &Path) -> Result<HostCache, Refused> {
    // Neither follows a link, nor waits for who opens the other end of a pipe.
    let flags = (libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC) as _;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path).map_err(Refused::Unreadable)?;
    let about = file.metadata().map_err(Refused::Unreadable)?;
    if !about.is_file() {
        return Err(Refused::Kind);
    }
    let own = rustix::process::geteuid().as_raw();
    if about.uid() != 0 && about.uid() != own {
        return Err(Refused::Owner(about.uid()));
    }
    if about.mode() & 0o022 != 0 {
        return Err(Refused::Writable(about.mode() & 0o7777));
    }
    if about.len() > FILE_MAX as u64 {
        return Err(Malformed::Long(usize::try_from(about.len()).unwrap_or(usize::MAX)).into());
    }
    let mut bytes = vec![0; about.len() as usize];
    let length = read_all(file, &mut bytes).map_err(Refused::Unreadable)?;
    Ok(format::decode(&bytes[..length])?)
}

fn read_all(mut file: File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read(&mut bytes[done..])? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// Replaces the cache at once, so that who reads it has the old one or the new one. Makes its directory.
///
/// # Errors
/// It cannot be written, or is too large.
pub fn write(path: &Path, cache: &HostCache) -> io::Result<()> {
    let bytes = format::encode(cache).map_err(io::Error::other)?;
    let readable = |mode| Permissions::from_mode(mode);
    if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
        fs::create_dir_all(directory)?;
        // All of the host's programs read it, whatever the umask of who makes it is.
        fs::set_permissions(directory, readable(0o755))?;
    }
    // Containers that share the directory have equal process numbers.
    let random = RandomState::new().build_hasher().finish();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{random:016x}"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o644).open(&beside)?;
    let written = file.write_all(&bytes).and_then(|()| {
        file.set_permissions(readable(0o644))?;
        // An empty file after a crash would be refused, and nothing makes one anew that is refused.
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn stored() -> (tempfile::TempDir, PathBuf, HostCache) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/verbs");
        let cache = HostCache { kernel: b"6.1".to_vec(), ..HostCache::default() };
        write(&path, &cache).unwrap();
        (directory, path, cache)
    }

    #[test]
    fn it_is_replaced_and_read() {
        let (_directory, path, mut cache) = stored();
        assert_eq!(read(&path).unwrap(), cache);
        cache.kernel = b"6.12".to_vec();
        write(&path, &cache).unwrap();
        assert_eq!(read(&path).unwrap(), cache);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_another_container_is_writing_stays() {
        let (_directory, path, cache) = stored();
        // Of a process that has this one's number in its container.
        let mut theirs = path.clone().into_os_string();
        theirs.push(format!(".{}", std::process::id()));
        fs::write(&theirs, "half").unwrap();
        write(&path, &cache).unwrap();
        assert_eq!(
            (read(&path).unwrap(), fs::read(&theirs).unwrap()),
            (cache.clone(), b"half".into())
        );
        // Nor is anything left of one that could not take the cache's place.
        let taken = path.with_file_name("directory");
        fs::create_dir_all(taken.join("below")).unwrap();
        write(&taken, &cache).unwrap_err();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3);
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let (_directory, path, _) = stored();
        for mode in [0o664, 0o646, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read(&path), Err(Refused::Writable(is)) if is == mode));
        }
    }

    #[test]
    fn what_another_user_owns_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("note: only root can give a file away: not tried");
            return;
        }
        let (_directory, path, _) = stored();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert!(matches!(read(&path), Err(Refused::Owner(12_345))));
    }

    #[test]
    fn links_pipes_and_directories_are_refused() {
        let (directory, path, _) = stored();
        let other = directory.path().join("other");
        symlink(&path, &other).unwrap();
        assert!(matches!(read(&other), Err(Refused::Unreadable(_))));
        assert!(matches!(read(directory.path()), Err(Refused::Kind)));
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        assert!(matches!(read(&pipe), Err(Refused::Kind)));
    }

    #[test]
    fn truncated_and_huge_files_are_refused() {
        let (_directory, path, _) = stored();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(read(&path), Err(Refused::Malformed(Malformed::Length { .. }))));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read(&path), Err(Refused::Malformed(Malformed::Long(_)))));
        fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().is_absent());
    }
}
