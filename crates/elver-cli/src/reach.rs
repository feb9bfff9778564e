//! Which programs the loader puts a library under, and why not the others.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::getuid;

/// A header and its table stand at the beginning of every program that a linker made.
const HEAD: u64 = 1 << 16;
/// `e_machine` of this program, which the library is of too.
const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// What a file may do that whoever starts it may not (capabilities(7)).
const CAPABILITIES: &str = "security.capability";

/// Why the loader would put no library under a program.
///
/// # Errors
/// The program, or what runs it, is not there or cannot be read.
pub(crate) fn out_of_reach(program: &Path) -> io::Result<Option<String>> {
    let head = head(program)?;
    match interpreter(&head) {
        None => reason(program, &head, getuid().is_root()),
        // A script is what runs it; the kernel follows a few more, and then each is looked at when it is run.
        Some(runs) if runs.is_file() => {
            let why = reason(&runs, &self::head(&runs)?, getuid().is_root())?;
            Ok(why.map(|why| format!("is run by {}, which {why}", runs.display())))
        }
        Some(runs) => {
            let (program, path) = (program.display(), runs.display());
            let (kind, what) = match runs.exists() {
                true => (io::ErrorKind::PermissionDenied, "is no program"),
                false => (io::ErrorKind::NotFound, "is not there"),
            };
            let what = format!("cannot run {program}: its first line names {path}, which {what}");
            Err(io::Error::new(kind, what))
        }
    }
}

/// Why a file is no library for programs of this machine.
///
/// # Errors
/// It is not there, or cannot be read.
pub(crate) fn no_library(path: &Path) -> io::Result<Option<String>> {
    Ok(no_library_by(&head(path)?))
}

fn no_library_by(head: &[u8]) -> Option<String> {
    const ET_DYN: u64 = 3;
    if !head.starts_with(b"\x7fELF") {
        return Some("is no library: it does not begin as an ELF file does".into());
    }
    if head.get(4) == Some(&1) {
        return Some("is a library for 32 bits".into());
    }
    match (word(head, 18, 2), word(head, 16, 2)) {
        (Some(MACHINE), Some(ET_DYN)) => None,
        (Some(MACHINE), _) => Some("is no shared object".into()),
        (machine, _) => {
            let machine = machine.unwrap_or_default();
            Some(format!("is for another processor (e_machine {machine}, not {MACHINE})"))
        }
    }
}

fn head(program: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(program)
        .and_then(|file| file.take(HEAD).read_to_end(&mut head))
        .map_err(|error| cannot_read(program, &error))?;
    Ok(head)
}

fn cannot_read(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}

/// What runs a script.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    (!word.is_empty()).then(|| OsStr::from_bytes(word).into())
}

/// The same of a program that is no script, for who is root or is not.
fn reason(program: &Path, head: &[u8], is_root: bool) -> io::Result<Option<String>> {
    let mode = program.metadata().map_err(|error| cannot_read(program, &error))?;
    if mode.mode() & 0o6000 != 0 {
        return Ok(Some("changes its user or group when it starts (setuid)".into()));
    }
    // Of a file system that knows none it has none.
    let found = rustix::fs::getxattr(program, CAPABILITIES, &mut [0_u8; 64][..]);
    if !is_root && found.is_ok_and(|len| len > 0) {
        return Ok(Some(
            "has capabilities of its own (getcap), with which the loader takes no libraries from its user".into(),
        ));
    }
    Ok(if is_loader(program) { None } else { of_header(head) })
}

/// Whether it is the loader, which asks for none, and loads libraries for the program that it is told to run.
fn is_loader(program: &Path) -> bool {
    let name = program.file_name().map(OsStr::as_bytes).unwrap_or_default();
    name.starts_with(b"ld-linux") || name == b"ld.so"
}

/// Why a header says that the loader of this library would not run it (System V ABI, "ELF Header", "Program Header").
fn of_header(head: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let word = |at: usize, len: usize| word(head, at, len);
    match head.strip_prefix(b"\x7fELF")? {
        [1, ..] => return Some("is a program for 32 bits, and the library is for 64".into()),
        [2, 1, ..] => {}
        _ => return None,
    }
    let machine = word(18, 2)?;
    if machine != MACHINE {
        return Some(format!("is for another processor (e_machine {machine}, not {MACHINE})"));
    }
    let (table, entry, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    let mut loader = None;
    for at in 0..count {
        let at = table.checked_add(at * entry).and_then(|at| usize::try_from(at).ok());
        if let Some(at) = at.filter(|at| word(*at, 4) == Some(PT_INTERP)) {
            let text = word(at.checked_add(8)?, 8)?;
            loader = Some(head.get(usize::try_from(text).ok()?..).unwrap_or_default());
        }
    }
    let Some(loader) = loader else {
        return Some("is linked statically, as Go's programs are".into());
    };
    let path = loader.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-musl").then(|| {
        "is linked to the C library musl, and the library to glibc: use an image that has glibc"
            .into()
    })
}

fn word(head: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = head.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_a_shared_object_for_this_machine() {
        let mut library = program(&[]);
        library[16] = 3;
        assert_eq!(no_library_by(&library), None);
        let changed = |at: usize, to: u8| {
            let mut other = library.clone();
            other[at] = to;
            no_library_by(&other).unwrap_or_default()
        };
        assert!(changed(0, b'x').contains("no library"));
        assert!(changed(4, 1).contains("32 bits"));
        assert!(changed(16, 2).contains("no shared object"));
        assert!(changed(18, 8).contains("another processor (e_machine 8"));
        for len in 0..20 {
            assert!(no_library_by(&library[..len]).is_some(), "{len}");
        }
    }

    /// A header with so many entries of these kinds; each tells that its text is behind all.
    fn program(kinds: &[u32]) -> Vec<u8> {
        let mut head = b"\x7fELF\x02\x01".to_vec();
        head.resize(64, 0);
        head[18] = MACHINE as u8;
        head[32] = 64;
        (head[54], head[56]) = (56, kinds.len() as u8);
        let text = 64 + 56 * kinds.len() as u64;
        for kind in kinds {
            head.extend(kind.to_le_bytes());
            head.extend([0; 4]);
            head.extend(text.to_le_bytes());
            head.extend([0; 40]);
        }
        head
    }

    fn said(head: &[u8]) -> String {
        of_header(head).unwrap_or_default()
    }

    #[test]
    fn who_asks_for_no_loader_is_static() {
        assert!(said(&program(&[1, 1, 4])).contains("statically"));
        assert_eq!(of_header(&program(&[6, 3, 1])), None);
        assert_eq!(of_header(b"#!/bin/sh\n"), None);
        // What a program says of itself may be anything.
        let mut nonsense = program(&[3]);
        nonsense[32..40].fill(0xff);
        assert!(said(&nonsense).contains("statically"));
        let mut nonsense = program(&[3]);
        nonsense[72..80].fill(0xff);
        assert_eq!(of_header(&nonsense), None);
        for len in 0..program(&[1, 3]).len() {
            of_header(&program(&[1, 3])[..len]);
        }
    }

    #[test]
    fn other_machines_and_c_libraries_are_named() {
        let mut of_32_bits = program(&[3]);
        of_32_bits[4] = 1;
        assert!(said(&of_32_bits).contains("32 bits"));
        let mut other = program(&[3]);
        other[18] = 8;
        assert!(said(&other).contains("another processor (e_machine 8"));
        for (loader, musl) in
            [("/lib/ld-musl-x86_64.so.1", true), ("/lib64/ld-linux-x86-64.so.2", false)]
        {
            let head = [&program(&[6, 3]), loader.as_bytes(), b"\0rest"].concat();
            assert_eq!(said(&head).contains("musl"), musl, "{loader}");
        }
    }

    #[test]
    fn a_script_is_what_runs_it() {
        let runs = |head: &[u8]| interpreter(head).map(|path| path.display().to_string());
        assert_eq!(runs(b"#!/bin/sh\necho").as_deref(), Some("/bin/sh"));
        assert_eq!(runs(b"#! /usr/bin/env -S python3\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!([runs(b"#!"), runs(b"#!\n/bin/sh"), runs(b"\x7fELF")], [None, None, None]);
    }

    /// It needs root, who alone may give capabilities.
    #[test]
    fn who_has_capabilities_of_its_own_is_out_of_reach() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::copy("/bin/true", &own).unwrap();
        let head = head(&own).unwrap();
        assert_eq!(reason(&own, &head, false).unwrap(), None);
        // `struct vfs_cap_data` of revision 2: CAP_NET_RAW, effective.
        let mut data = [0_u8; 20];
        data[..8].copy_from_slice(&[1, 0, 0, 2, 0, 1 << 5, 0, 0]);
        rustix::fs::setxattr(&own, CAPABILITIES, &data, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(reason(&own, &head, false).unwrap().is_some_and(|why| why.contains("getcap")));
        // The kernel has root keep what it sets.
        assert_eq!(reason(&own, &head, true).unwrap(), None);
    }
}
