//! The container's log: what its processes write comes through a pipe, so that the file has a bound and nobody is ended for
//! writing to it. Of a file that is full its end is kept.

use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread;

use rustix::fs::{FileType, fstat};

/// The largest log, in bytes.
const LOG_MAX: u64 = 16 << 20;

/// How much of a full one is kept, in bytes.
const KEPT: u64 = 4 << 20;

/// Takes over standard output and standard error, which all processes of the container inherit, where they are a file.
pub(super) fn start() -> io::Result<()> {
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    if !FileType::from_raw_mode(fstat(&stdout)?.st_mode).is_file() {
        // An engine keeps it.
        return Ok(());
    }
    let mut log = Log { length: fstat(&stdout)?.st_size.cast_unsigned(), file: File::from(stdout) };
    let (mut reading, writing) = io::pipe()?;
    rustix::stdio::dup2_stdout(&writing)?;
    rustix::stdio::dup2_stderr(&writing)?;
    let keep = move || {
        let mut part = vec![0; 64 << 10];
        loop {
            match reading.read(&mut part) {
                Ok(0) => return,
                // A disk that is full takes no more of it.
                Ok(read) => drop(log.append(&part[..read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    thread::Builder::new().name("log".into()).spawn(keep).map(drop)
}

/// Writes a line of our own. A log that takes none has nobody to be told of it.
pub(super) fn say(what: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "elver-init: {what}");
}

struct Log {
    file: File,
    length: u64,
}

impl Log {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length + bytes.len() as u64 > LOG_MAX {
            self.shorten()?;
        }
        self.file.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn shorten(&mut self) -> io::Result<()> {
        // Somebody may have cut it.
        let there = fstat(&self.file)?.st_size.cast_unsigned().min(self.length);
        let length = there.min(KEPT);
        let mut kept = vec![0; length as usize];
        self.file.read_exact_at(&mut kept, there - length)?;
        self.file.write_all_at(&kept, 0)?;
        self.length = length;
        self.file.set_len(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_its_end() {
        let mut log = Log { file: tempfile::tempfile().unwrap(), length: 0 };
        let line = |number: u64| format!("{number:>1023}\n");
        let lines = 3 * LOG_MAX / 1024;
        for number in 0..lines {
            log.append(line(number).as_bytes()).unwrap();
            assert!(log.length <= LOG_MAX);
        }
        let length = log.file.metadata().unwrap().len();
        assert!((KEPT..=LOG_MAX).contains(&length) && length == log.length, "{length}");
        let mut whole = vec![0; length as usize];
        log.file.read_exact_at(&mut whole, 0).unwrap();
        let whole = String::from_utf8(whole).unwrap();
        let first = lines - length / 1024;
        let expected: String = (first..lines).map(line).collect();
        assert!(whole == expected, "lines are missing, or in another order");
    }

    /// Nothing was written any more.
    #[test]
    fn a_log_that_somebody_cuts_goes_on() {
        let mut log = Log { file: tempfile::tempfile().unwrap(), length: 0 };
        let part = vec![b'x'; LOG_MAX as usize - 1];
        for length in [0, 10, LOG_MAX + 10] {
            log.append(&part).unwrap();
            log.file.set_len(length).unwrap();
            log.append(b"the last line").unwrap();
            let mut end = [0; 13];
            log.file.read_exact_at(&mut end, log.length - 13).unwrap();
            assert_eq!(&end, b"the last line");
            assert_eq!(log.file.metadata().unwrap().len(), log.length);
        }
    }
}
