//! The libraries of this process, as the dynamic loader knows them: no system calls.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use libc::{PT_NOTE, dl_phdr_info};

/// A library that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file, as the loader names it.
    pub path: Vec<u8>,
    /// Its build id; empty if it has none.
    pub build: Vec<u8>,
}

/// The library that has this address.
pub fn at(address: *const c_void) -> Option<Library> {
    find(|info| {
        segments(info).any(|segment| {
            // The kernel's own pages may stand at addresses that wrap.
            let start = (info.dlpi_addr as usize).wrapping_add(segment.p_vaddr as usize);
            let inside = (address as usize).wrapping_sub(start);
            segment.p_type == libc::PT_LOAD && inside < segment.p_memsz as usize
        })
    })
}

/// The library whose file has this name, or a name that starts with it and a point.
pub fn named(name: &str) -> Option<Library> {
    let with_point = format!("{name}.");
    find(|info| {
        let path = path(info);
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        file == name.as_bytes() || file.starts_with(with_point.as_bytes())
    })
}

fn find(is_it: impl Fn(&dl_phdr_info) -> bool) -> Option<Library> {
    let mut search = Search { is_it: &is_it, found: None };
    // SAFETY: `visit` takes what it is given here, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    is_it: &'a dyn Fn(&dl_phdr_info) -> bool,
    found: Option<Library>,
}

unsafe extern "C" fn visit(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid description, and `find` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if (search.is_it)(info) {
        search.found = Some(Library { path: path(info).to_vec(), build: build(info) });
        return 1;
    }
    0
}

fn path(info: &dl_phdr_info) -> &[u8] {
    if info.dlpi_name.is_null() {
        return &[];
    }
    // SAFETY: the loader's name of a library that is loaded, while it visits it.
    unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
}

fn segments(info: &dl_phdr_info) -> impl Iterator<Item = &libc::Elf64_Phdr> {
    let count = if info.dlpi_phdr.is_null() { 0 } else { usize::from(info.dlpi_phnum) };
    // SAFETY: the loader's table of that many segments, while it visits the library.
    (0..count).map(move |at| unsafe { &*info.dlpi_phdr.add(at) })
}

/// The note of type 3 of GNU; see elf(5).
fn build(info: &dl_phdr_info) -> Vec<u8> {
    for segment in segments(info).filter(|segment| segment.p_type == PT_NOTE) {
        let start = (info.dlpi_addr as usize).wrapping_add(segment.p_vaddr as usize) as *const u8;
        // SAFETY: a library's notes are mapped with it, and stay so while the loader visits it.
        let notes = unsafe { std::slice::from_raw_parts(start, segment.p_memsz as usize) };
        if let Some(build) = build_among(notes) {
            return build.to_vec();
        }
    }
    Vec::new()
}

fn build_among(mut notes: &[u8]) -> Option<&[u8]> {
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, value) = (word(0) as usize, word(4) as usize);
        let from = name.checked_next_multiple_of(4)?;
        let (label, body) = rest.split_at_checked(from)?;
        let found = body.get(..value)?;
        if word(8) == 3 && label.starts_with(b"GNU\0") {
            return Some(found);
        }
        notes = body.get(value.checked_next_multiple_of(4)?..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_found_by_address_and_by_name() {
        let by_address = at(libc::getppid as *const c_void).unwrap();
        assert!(by_address.path.ends_with(b"libc.so.6"));
        assert_eq!(by_address.build.len(), 20);
        assert_eq!(named("libc.so"), Some(by_address));
        assert_eq!(named("libnothing.so"), None);
        assert_eq!(at(std::ptr::null()), None);
    }

    #[test]
    fn notes_that_are_cut_or_long_are_none() {
        let mut notes = Vec::new();
        for word in [4u32, 3, 3] {
            notes.extend(word.to_le_bytes());
        }
        notes.extend(b"GNU\0abc");
        assert_eq!(build_among(&notes), Some(&b"abc"[..]));
        for length in 0..notes.len() {
            assert_eq!(build_among(&notes[..length]), None);
        }
        assert_eq!(build_among(&[0xff; 64]), None);
    }
}
