//! A device's counters, for other processes to read: a small file that the device maps, writes and
//! removes.
//!
//! The file holds a magic number, a version and the number of counters, 8 bytes each, then the
//! values, 8 bytes each, then the device's name, its address and the counters' names as lines of
//! text. Readers trust none of it.
//!
//! As long as the device is there its process holds a lock on the file, of the kind that belongs to a process
//! (`F_SETLK`): it goes with the process however that ends, no child inherits it, and it is seen from every PID
//! namespace. It goes too when any descriptor of the file is closed in its process, so that a reader opens no
//! file of its own process.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Flock, FlockType, Resource, fcntl_getlk, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};

/// How often a device tells what it has counted.
pub(crate) const PUBLISH_INTERVAL_NS: u64 = 50_000_000;

const MAGIC: u64 = u64::from_le_bytes(*b"elvercnt");
const VERSION: u64 = 1;
/// Words before the values.
const HEADER_WORDS: usize = 3;
/// A file longer than this is none of ours.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Names that are tried for a file.
const NAMES_TRIED: u32 = 16;

/// A running device of this user, as it last told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedDevice {
    /// The process that has it open; 0 if it runs in a PID namespace that this process does not see.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The address that it is bound to.
    pub address: String,
    /// Its counters, in their order.
    pub counters: Vec<(String, u64)>,
}

/// The devices of this user that are open in other processes. Files that dead processes left are removed.
pub fn published() -> Vec<PublishedDevice> {
    published_in(&directory())
}

fn published_in(directory: &Path) -> Vec<PublishedDevice> {
    if !fs::symlink_metadata(directory).is_ok_and(|metadata| is_private(&metadata)) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let own = prefix().unwrap_or_default();
    let mut devices = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("device-")) else { continue };
        if own.is_empty() || !name.starts_with(&own) {
            devices.extend(living(&entry.path()));
        }
    }
    devices.sort_by(|a, b| (a.pid, &a.name).cmp(&(b.pid, &b.name)));
    devices
}

/// The device of a file whose lock somebody holds. Another file is removed.
fn living(path: &Path) -> Option<PublishedDevice> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).write(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).ok().filter(is_file)?;
    match fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()? {
        Some(holder) => {
            let pid = holder.pid.map_or(0, |pid| pid.as_raw_pid().cast_unsigned());
            read(&file, pid)
        }
        None => {
            // While it is held here no device takes the file, and no other reader removes its successor.
            if fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && is_linked(&file)
            {
                let _ = fs::remove_file(path);
            }
            None
        }
    }
}

fn is_file(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Whether it has a name still.
fn is_linked(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

/// What the files of this process begin with, and of no other: not of its children, nor of one that has the same
/// number in another namespace or had it before.
fn prefix() -> io::Result<String> {
    static TOKEN: AtomicU64 = AtomicU64::new(0);

    let mut token = TOKEN.load(Ordering::Relaxed);
    if token == 0 {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let drawn = u64::from_ne_bytes(bytes) | 1;
        let was = TOKEN.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
        token = was.err().unwrap_or(drawn);
    }
    Ok(format!("device-{}-{token:016x}-", std::process::id()))
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

fn read(file: &File, pid: u32) -> Option<PublishedDevice> {
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

/// Looks whether this process may have a file as long: who makes one longer than that is killed (`RLIMIT_FSIZE`,
/// `SIGXFSZ`), and what is in memory alone counts too.
///
/// # Errors
/// [`Errno::FBIG`] if it may not.
pub fn allow_file(bytes: u64) -> Result<(), Errno> {
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < bytes) { Err(Errno::FBIG) } else { Ok(()) }
}

/// The writing side. The file goes with it.
pub(crate) struct Publisher {
    path: PathBuf,
    /// Its lock is held as long as this is open.
    _file: File,
    /// Who made it; a copy in a child is none.
    process: u32,
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
        let directory = directory();
        private(&directory)?;
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
        allow_file(bytes.len() as u64)?;
        let (path, mut file) = locked(&directory)?;
        file.write_all(&bytes)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory in use; the file
        // is at least as long as the mapping, and only this user can shorten it.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), words * 8, protection, flags, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Publisher { path, _file: file, process: std::process::id(), start, words })
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
        if self.process == std::process::id() {
            // Somebody may have tidied up already.
            let _ = fs::remove_file(&self.path);
        }
        // SAFETY: the mapping is ours, of this length, and not used after.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}

/// A file of a new name, whose lock this process holds.
fn locked(directory: &Path) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);

    let prefix = prefix()?;
    for _ in 0..NAMES_TRIED {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{prefix}{number}"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // A reader that came in between has taken it for a dead one's, and removes it.
        if fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_linked(&file) {
            return Ok((path, file));
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Makes a directory for its owner alone, or checks that it is one.
fn private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    if is_private(&fs::symlink_metadata(directory)?) {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is not a directory of ours alone", directory.display())))
}

/// Whether nobody but this user puts anything there.
fn is_private(directory: &Metadata) -> bool {
    let is_ours = directory.uid() == rustix::process::getuid().as_raw();
    directory.is_dir() && is_ours && directory.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// A place of its own for a test.
    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("elver-{name}-{}", std::process::id()));
        private(&place).unwrap();
        place
    }

    const PUBLISHES: &str = "publish::tests::a_process_publishes_until_it_is_told_to_end";

    /// What the tests below start.
    #[test]
    #[ignore = "a process of the others"]
    fn a_process_publishes_until_it_is_told_to_end() {
        let names = ["sent", "received"].into_iter();
        let mut publisher = Publisher::open("soft-test", "192.0.2.1", names).unwrap();
        publisher.update([3, 5].into_iter());
        // To look at its own files would cost it their locks.
        assert!(published().iter().all(|one| one.pid != std::process::id()));
        println!("\npublished");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    fn publishing(place: &Path) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([PUBLISHES, "--exact", "--ignored", "--nocapture"])
            .env("XDG_RUNTIME_DIR", place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "published"));
        child
    }

    #[test]
    fn what_is_published_is_read_and_goes() {
        let place = place("published");
        let (mut ends, mut is_killed) = (publishing(&place), publishing(&place));
        let directory = place.join("elver");
        let mut devices = published_in(&directory);
        devices.retain(|device| device.pid == ends.id());
        assert_eq!(devices.len(), 1, "{devices:?}");
        assert_eq!(devices[0].counters, [("sent".to_string(), 3), ("received".to_string(), 5)]);
        drop(ends.stdin.take());
        assert!(ends.wait().unwrap().success());
        let pids =
            |devices: Vec<PublishedDevice>| devices.iter().map(|one| one.pid).collect::<Vec<_>>();
        assert_eq!(pids(published_in(&directory)), [is_killed.id()]);
        is_killed.kill().unwrap();
        is_killed.wait().unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert_eq!(published_in(&directory), []);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(&place).unwrap();
    }

    /// The number of a process is another one in another PID namespace, and somebody else's later.
    #[test]
    fn whether_a_device_lives_is_told_by_its_lock_and_not_by_a_number() {
        let place = place("locked");
        let mut child = publishing(&place);
        let directory = place.join("elver");
        let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
        let (elsewhere, dead) =
            (directory.join("device-4194999-0-0"), directory.join("device-1-0-0"));
        fs::rename(&file, &elsewhere).unwrap();
        fs::copy(&elsewhere, &dead).unwrap();
        let devices = published_in(&directory);
        assert_eq!(devices.iter().map(|one| one.pid).collect::<Vec<_>>(), [child.id()]);
        assert!(elsewhere.exists() && !dead.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn what_others_put_there_is_neither_opened_nor_removed() {
        let place = place("foreign");
        let (fifo, link, target) =
            (place.join("device-1-0"), place.join("device-2-0"), place.join("target"));
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(published_in(&place), []);
        let all_may_write = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&place, all_may_write).unwrap();
        let left = place.join("device-3-0");
        fs::write(&left, "").unwrap();
        assert_eq!(published_in(&place), []);
        assert!([fifo, link, target, left].iter().all(|path| path.symlink_metadata().is_ok()));
        fs::remove_dir_all(&place).unwrap();
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
            assert_eq!(read(&File::open(&path).unwrap(), 1), None);
        }
        let huge = [MAGIC, VERSION, u64::MAX].map(u64::to_ne_bytes).concat();
        fs::write(&path, huge).unwrap();
        assert_eq!(read(&File::open(&path).unwrap(), 1), None);
        fs::remove_file(&path).unwrap();
    }
}
