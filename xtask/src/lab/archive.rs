//! Writes the `newc` cpio format that the kernel unpacks as its first root file system. Everything in it belongs to
//! root, whoever writes it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

pub struct Archive<W: Write> {
    to: W,
    inode: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Archive<W> {
        Archive { to, inode: 0, directories: BTreeSet::new() }
    }

    /// A directory, and those above it.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let path = &path[..end];
            if !path.is_empty() && self.directories.insert(path.to_owned()) {
                self.member(path, DIRECTORY | 0o755, (0, 0), &[])?;
            }
        }
        Ok(())
    }

    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.parent(path)?;
        self.member(path, REGULAR | mode, (0, 0), content)
    }

    /// A copy of a file of the host, symbolic links followed.
    pub fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = fs::metadata(from)?.permissions().mode() & 0o777;
        self.file(path, mode, &content)
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.parent(path)?;
        self.member(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    pub fn character_device(&mut self, path: &str, mode: u32, device: (u32, u32)) -> Result<()> {
        self.parent(path)?;
        self.member(path, CHARACTER | mode, device, &[])
    }

    pub fn finish(mut self) -> Result<()> {
        self.member("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.to.flush()?)
    }

    fn parent(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    fn member(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("{path} is too large"))?;
        let name_size = path.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device of the file, device it stands for, size of the name, check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08x}");
        }
        self.to.write_all(header.as_bytes())?;
        self.to.write_all(path.as_bytes())?;
        self.to.write_all(&[0])?;
        self.pad(header.len() + path.len() + 1)?;
        self.to.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, written: usize) -> Result<()> {
        Ok(self.to.write_all(&[0; 3][..written.wrapping_neg() % 4])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_aligned_and_directories_come_first_and_once() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("usr/bin/a", 0o755, b"12345").unwrap();
        archive.file("usr/bin/b", 0o644, b"").unwrap();
        archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let starts: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| w == b"070701").map(|(i, _)| i).collect();
        assert!(starts.iter().all(|start| start % 4 == 0));
        let names: Vec<String> = starts
            .iter()
            .map(|start| bytes[start + 110..].iter().take_while(|byte| **byte != 0))
            .map(|name| name.map(|byte| char::from(*byte)).collect())
            .collect();
        assert_eq!(names, ["usr", "usr/bin", "usr/bin/a", "usr/bin/b", "TRAILER!!!"]);
    }
}
