//! Recording into a file, while the device works: nothing is left out, and the device waits for the
//! file.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::pcapng::{self, Direction, LinkType, Recorded};
use super::tap::unix_ns;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 8192;
/// Who may read what everybody sends, and the keys in it.
const MODE: u32 = 0o600;

/// Packets that were to go into files of this process, and those of them that the files lack.
static SEEN: AtomicU64 = AtomicU64::new(0);
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Packets that files of this process have, once their devices are closed.
pub fn recorded() -> u64 {
    SEEN.load(Ordering::Relaxed).saturating_sub(left_out())
}

/// Packets that devices of this process were to record into files, and could not.
pub fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// A pcapng file being written. The first failed write ends the recording, which is told when this is
/// dropped.
pub(crate) struct FileCapture {
    file: File,
    path: PathBuf,
    bytes_left: u64,
    /// Bytes that were written: whole blocks.
    written: u64,
    /// Whole blocks that are to be.
    blocks: Vec<u8>,
    /// Where a block is made before it is known to fit.
    block: Vec<u8>,
    packet: Vec<u8>,
    /// Why it ended, and packets that it lacks.
    ended: Option<(String, u64)>,
}

impl FileCapture {
    /// Creates the file, for its owner alone, also where one is there.
    pub(crate) fn create(
        path: &Path,
        bytes_max: u64,
        link: LinkType,
        name: &str,
    ) -> io::Result<FileCapture> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(MODE).open(path)?;
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(MODE))?;
        }
        let mut capture = FileCapture {
            file,
            path: path.to_path_buf(),
            bytes_left: bytes_max,
            written: 0,
            blocks: Vec::with_capacity(2 * WRITE_BYTES),
            block: Vec::with_capacity(WRITE_BYTES),
            packet: Vec::with_capacity(WRITE_BYTES),
            ended: None,
        };
        pcapng::begin(&mut capture.block, link, name, "elver", 0);
        capture.take();
        Ok(capture)
    }

    /// Records a packet of this moment, which consists of two parts.
    pub(super) fn record(&mut self, direction: Direction, front: &[u8], back: &[u8]) {
        SEEN.fetch_add(1, Ordering::Relaxed);
        if let Some((_, lacking)) = &mut self.ended {
            *lacking += 1;
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.packet.clear();
        self.packet.extend(front);
        self.packet.extend(back);
        let packet = Recorded {
            unix_ns: unix_ns(),
            direction,
            bytes: &self.packet,
            len: self.packet.len() as u32,
            lost: 0,
        };
        self.block.clear();
        pcapng::packet(&mut self.block, &packet, "");
        self.take();
    }

    /// Takes the block that was made.
    fn take(&mut self) {
        let Some(left) = self.bytes_left.checked_sub(self.block.len() as u64) else {
            self.write();
            return self.end("it is as long as it may be".to_string(), 1);
        };
        self.bytes_left = left;
        self.blocks.extend(&self.block);
        if self.blocks.len() >= WRITE_BYTES {
            self.write();
        }
    }

    /// Writes the blocks that wait. Of one that does not fit no piece is left.
    pub(super) fn write(&mut self) {
        if self.ended.is_some() || self.blocks.is_empty() {
            return;
        }
        match self.file.write_all(&self.blocks) {
            Ok(()) => {
                self.written += self.blocks.len() as u64;
                self.blocks.clear();
            }
            Err(error) => {
                // A pipe has no place to go back to, and nothing to be cut off.
                let end = self.file.stream_position().unwrap_or(self.written);
                let (whole, lacking) = cut(&self.blocks, end.saturating_sub(self.written));
                let _ = self.file.set_len(self.written + whole);
                self.end(error.to_string(), lacking);
            }
        }
    }

    fn end(&mut self, why: String, lacking: u64) {
        let ended = self.ended.get_or_insert((why, 0));
        ended.1 += lacking;
        LEFT_OUT.fetch_add(lacking, Ordering::Relaxed);
    }
}

impl Drop for FileCapture {
    fn drop(&mut self) {
        self.write();
        if let Some((why, lacking)) = &self.ended {
            let path = self.path.display();
            // Who started the process may have closed it.
            let _ = writeln!(
                io::stderr(),
                "elver: the capture {path} ends early, and lacks {lacking} packets: {why}"
            );
        }
    }
}

/// Of blocks that were to be written, and of which so many bytes were: the bytes of those that are
/// whole, and the packets in the others.
fn cut(blocks: &[u8], written: u64) -> (u64, u64) {
    let (mut whole, mut lacking, mut at) = (0, 0, 0);
    while let Some(head) = blocks[at..].first_chunk::<8>() {
        let [kind, len] = [0, 4]
            .map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        at += len as usize;
        if at as u64 <= written {
            whole = at as u64;
        } else if kind == pcapng::ENHANCED_PACKET {
            lacking += 1;
        }
    }
    (whole, lacking)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of its blocks, all of them whole.
    fn kinds(path: &Path) -> Vec<u32> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len);
            kinds.push(word(at));
            at += len;
        }
        kinds
    }

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("elver-capture-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_is_bounded_and_whole() {
        let path = place("bounded");
        let mut capture = FileCapture::create(&path, 500, LinkType::Ip, "elver0").unwrap();
        for _ in 0..10 {
            capture.record(Direction::Out, &[0x45; 28], &[0x11; 61]);
        }
        let lacking = capture.ended.as_ref().unwrap().1;
        drop(capture);
        let len = std::fs::metadata(&path).unwrap().len();
        let kinds = kinds(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(len <= 500 && len > 200, "{len}");
        assert_eq!(kinds[..3], [0x0a0d_0d0a, 1, 6]);
        assert_eq!(kinds.len() as u64 - 2 + lacking, 10);
    }

    /// However much of what is written the disk takes.
    #[test]
    fn of_a_block_that_the_disk_does_not_take_whole_there_is_nothing() {
        let mut blocks = Vec::new();
        pcapng::begin(&mut blocks, LinkType::Ip, "elver0", "elver", 0);
        let head = blocks.len();
        let packet =
            Recorded { unix_ns: 1, direction: Direction::In, bytes: &[1; 61], len: 61, lost: 0 };
        for _ in 0..3 {
            pcapng::packet(&mut blocks, &packet, "");
        }
        let one = (blocks.len() - head) / 3;
        for written in head..=blocks.len() {
            let packets = (written - head) / one;
            let expected = ((head + packets * one) as u64, 3 - packets as u64);
            assert_eq!(cut(&blocks, written as u64), expected);
        }
        assert_eq!(cut(&blocks, 0), (0, 3));
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_counted() {
        let before = left_out();
        let full = Path::new("/dev/full");
        let mut capture = FileCapture::create(full, 1 << 20, LinkType::Ip, "elver0").unwrap();
        for _ in 0..500 {
            capture.record(Direction::Out, &[0x45; 28], &[0x11; 61]);
        }
        let (why, lacking) = capture.ended.clone().unwrap();
        assert!(why.contains("No space left") && lacking == 500, "{why}: {lacking}");
        drop(capture);
        assert!(left_out() >= before + 500);
    }

    #[test]
    fn a_file_that_others_could_read_is_closed_to_them() {
        let path = place("open");
        std::fs::write(&path, "of everybody").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(FileCapture::create(&path, 1 << 20, LinkType::Ip, "elver0").unwrap());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        let kinds = kinds(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!((mode & 0o777, &kinds[..]), (0o600, &[0x0a0d_0d0a, 1][..]));
    }
}
