//! Recording into a file, while the device works: nothing is left out, and the device waits for the
//! file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::pcapng::{self, Direction, LinkType, Recorded};
use super::tap::unix_ns;

/// A pcapng file being written. The first failed write ends the recording.
pub(crate) struct FileCapture {
    file: Option<BufWriter<File>>,
    bytes_left: u64,
    block: Vec<u8>,
    packet: Vec<u8>,
}

impl FileCapture {
    /// Creates the file, for its owner alone.
    pub(crate) fn create(
        path: &Path,
        bytes_max: u64,
        link: LinkType,
        name: &str,
    ) -> io::Result<FileCapture> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut capture = FileCapture {
            file: Some(BufWriter::new(file)),
            bytes_left: bytes_max,
            block: Vec::with_capacity(8192),
            packet: Vec::with_capacity(8192),
        };
        pcapng::begin(&mut capture.block, link, name, "elver", 0);
        capture.write();
        Ok(capture)
    }

    /// Records a packet of this moment, which consists of two parts.
    pub(super) fn record(&mut self, direction: Direction, front: &[u8], back: &[u8]) {
        if self.file.is_none() {
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
        self.write();
    }

    fn write(&mut self) {
        let len = self.block.len() as u64;
        let fits = self.bytes_left >= len;
        let written =
            self.file.as_mut().is_some_and(|file| fits && file.write_all(&self.block).is_ok());
        if written {
            self.bytes_left -= len;
        } else if let Some(mut file) = self.file.take() {
            // What was recorded so far is whole; that it ends early is all that can be said.
            let _ = file.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_bounded_and_whole() {
        let path = std::env::temp_dir().join(format!("elver-capture-{}", std::process::id()));
        let mut capture = FileCapture::create(&path, 500, LinkType::Ip, "elver0").unwrap();
        for _ in 0..10 {
            capture.record(Direction::Out, &[0x45; 28], &[0x11; 61]);
        }
        drop(capture);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(bytes.len() <= 500 && bytes.len() > 200, "{}", bytes.len());
        let mut at = 0;
        let mut kinds = Vec::new();
        while at < bytes.len() {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len);
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(kinds[..3], [0x0a0d_0d0a, 1, 6]);
    }
}
