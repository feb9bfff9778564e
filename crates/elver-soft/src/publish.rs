//! A device's counters, for other processes to read: a small file that the device maps, writes and
//! removes.
//!
//! The file holds a magic number, a version and the number of counters, 8 bytes each, then the
//! values, 8 bytes each, then the device's name, its address and the counters' names as lines of
//! text. Readers trust none of it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// How often a device tells what it has counted.
pub(crate) const PUBLISH_INTERVAL_NS: u64 = 50_000_000;

const MAGIC: u64 = u64::from_le_bytes(*b"elvercnt");
const VERSION: u64 = 1;
/// Words before the values.
const HEADER_WORDS: usize = 3;
/// A file longer than this is none of ours.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A running device of this user, as it last told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedDevice {
    /// The process that has it open.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The address that it is bound to.
    pub address: String,
    /// Its counters, in their order.
    pub counters: Vec<(String, u64)>,
}

/// The devices of this user that are open in any process. Files that dead processes left are
/// removed.
pub fn published() -> Vec<PublishedDevice> {
    let Ok(entries) = fs::read_dir(directory()) else {
        return Vec::new();
    };
    let mut devices = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(pid) = pid_of(&path) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            // Another reader may have been faster.
            let _ = fs::remove_file(&path);
            continue;
        }
        devices.extend(read(&path, pid));
    }
    devices.sort_by(|a, b| (a.pid, &a.name).cmp(&(b.pid, &b.name)));
    devices
}

/// Where the files stand: below the user's runtime directory.
fn directory() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    directory_of(uid, std::env::var_os("XDG_RUNTIME_DIR").as_deref().map(Path::new))
}

/// Root's is not `/run/elver`: all users look for a daemon there, and these files are for root alone.
fn directory_of(uid: u32, runtime: Option<&Path>) -> PathBuf {
    match runtime {
        Some(base) if base.is_absolute() => base.join("elver"),
        _ if uid == 0 => PathBuf::from("/run/elver-devices"),
        _ => PathBuf::from(format!("/tmp/elver-{uid}")),
    }
}

/// The process that a file is of: `device-PID-NUMBER`.
fn pid_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("device-")?.split('-').next()?.parse().ok()
}

fn read(path: &Path, pid: u32) -> Option<PublishedDevice> {
    let file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let word = |index: usize| {
        let at = bytes.get(index * 8..index * 8 + 8)?;
        Some(u64::from_ne_bytes(at.try_into().ok()?))
    };
    if word(0)? != MAGIC || word(1)? != VERSION {
        return None;
    }
    let count = usize::try_from(word(2)?).ok().filter(|count| *count <= bytes.len() / 8)?;
    let values: Option<Vec<u64>> = (0..count).map(|index| word(HEADER_WORDS + index)).collect();
    let text = std::str::from_utf8(bytes.get((HEADER_WORDS + count) * 8..)?).ok()?;
    let mut lines = text.lines();
    let (name, address) = (lines.next()?.to_string(), lines.next()?.to_string());
    let counters = lines.map(str::to_string).zip(values?).collect();
    Some(PublishedDevice { pid, name, address, counters })
}

/// The writing side. The file goes with it.
pub(crate) struct Publisher {
    path: PathBuf,
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread in particular; it is written through atomics.
unsafe impl Send for Publisher {}

impl Publisher {
    pub(crate) fn open<'a>(
        name: &str,
        address: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> io::Result<Publisher> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);

        let directory = directory();
        private(&directory)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("device-{}-{number}", std::process::id()));
        let names: Vec<&str> = names.collect();
        let words = HEADER_WORDS + names.len();
        let mut bytes = vec![0; words * 8];
        for (index, word) in [MAGIC, VERSION, names.len() as u64].into_iter().enumerate() {
            bytes[index * 8..index * 8 + 8].copy_from_slice(&word.to_ne_bytes());
        }
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        bytes.extend(format!("{}\n{}\n", one_line(name), one_line(address)).into_bytes());
        for name in names {
            bytes.extend(format!("{name}\n").into_bytes());
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(&bytes)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory in use; the file
        // is at least as long as the mapping, and only this user can shorten it.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), words * 8, protection, flags, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Publisher { path, start, words })
    }

    /// Tells the present values.
    pub(crate) fn update(&mut self, values: impl Iterator<Item = u64>) {
        for (index, value) in (HEADER_WORDS..self.words).zip(values) {
            // SAFETY: `index` lies below the number of words of the mapping, which is aligned to a
            // page.
            let word = unsafe { self.start.add(index).as_ref() };
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Somebody may have tidied up already.
        let _ = fs::remove_file(&self.path);
        // SAFETY: the mapping is ours, of this length, and not used after.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}

/// Makes a directory for its owner alone, or checks that it is one.
fn private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let metadata = fs::symlink_metadata(directory)?;
    let ours = metadata.uid() == rustix::process::getuid().as_raw();
    if metadata.is_dir() && ours && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is not a directory of ours alone", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read_and_goes() {
        let mut publisher =
            Publisher::open("soft-test", "192.0.2.1", ["sent", "received"].into_iter()).unwrap();
        publisher.update([3, 5].into_iter());
        let find = || published().into_iter().find(|device| device.name == "soft-test");
        let device = find().unwrap();
        assert_eq!(device.pid, std::process::id());
        assert_eq!(device.counters, [("sent".to_string(), 3), ("received".to_string(), 5)]);
        drop(publisher);
        assert_eq!(find(), None);
    }

    /// They once made `/run/elver`, for root alone: no other user found a daemon there, nor his own
    /// behind it.
    #[test]
    fn roots_files_lie_apart_from_the_daemons_sockets() {
        let root = directory_of(0, None);
        assert!(!root.starts_with("/run/elver"), "{}", root.display());
        assert_eq!(directory_of(7, None), Path::new("/tmp/elver-7"));
        assert_eq!(directory_of(0, Some("/run/user/0".as_ref())), Path::new("/run/user/0/elver"));
        assert_eq!(directory_of(0, Some("here".as_ref())), root);
    }

    #[test]
    fn nonsense_is_not_read() {
        let path = std::env::temp_dir().join(format!("elver-nonsense-{}", std::process::id()));
        for bytes in [&b""[..], &[0xff; 100], &MAGIC.to_ne_bytes()] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path, 1), None);
        }
        let huge = [MAGIC, VERSION, u64::MAX].map(u64::to_ne_bytes).concat();
        fs::write(&path, huge).unwrap();
        assert_eq!(read(&path, 1), None);
        fs::remove_file(&path).unwrap();
    }
}
