//! Where breakpoints stand: at the functions of libraries that are mapped, and where these return to.

use std::collections::{HashMap, HashSet};
use std::fs;

use anyhow::{Context, Result};
use nix::unistd::Pid;
use object::{Object, ObjectSymbol, SymbolKind};

use super::memory::Memory;

pub(super) const INT3: u8 = 0xcc;
/// It has one byte.
pub(super) const TRAP: u64 = 1;

/// Of libnl and the C library: what libibverbs asks the kernel by, and reads files and loads providers by.
const INNER: [&str; 9] = [
    "nl_socket_alloc",
    "nl_connect",
    "nl_send_simple",
    "nl_send_auto",
    "nl_recvmsgs_default",
    "nl_socket_free",
    "dlopen",
    "fopen",
    "opendir",
];
/// Libraries whose functions are watched.
const LIBRARIES: [&str; 3] = ["/libibverbs.so.1", "/libnl-3.so.200", "/libc.so.6"];

/// A function's first instruction.
#[derive(Clone)]
pub(super) struct Spot {
    pub(super) name: String,
    /// The byte that the breakpoint stands for.
    pub(super) byte: u8,
    /// Whether it is a function of libibverbs' for programs, and no part of another.
    pub(super) is_call: bool,
}

#[derive(Default)]
pub(super) struct Spots {
    functions: HashMap<u64, Spot>,
    /// Where calls return to: the byte, and how many calls do.
    returns: HashMap<u64, (u8, u32)>,
    /// The bytes that any have stood for.
    stood: HashMap<u64, u8>,
    known: HashSet<String>,
}

impl Spots {
    pub(super) fn at(&self, address: u64) -> Option<&Spot> {
        self.functions.get(&address)
    }

    /// Whether one stands there now.
    pub(super) fn stands_at(&self, address: u64) -> bool {
        self.functions.contains_key(&address) || self.returns.contains_key(&address)
    }

    /// The byte where one stands, or has stood: who met it then may be heard of later.
    pub(super) fn stood_at(&self, address: u64) -> Option<u8> {
        self.stood.get(&address).copied()
    }

    /// Takes all of them out of a copy of the program's memory. What is no breakpoint there is left: it was mapped later, or
    /// is no more.
    pub(super) fn take_from(&self, copy: &Memory) {
        for (address, byte) in &self.stood {
            if copy.read(*address, 1) == [INT3] {
                // The process may be killed meanwhile.
                let _ = copy.write(*address, &[*byte]);
            }
        }
    }

    /// A call will return there; true if there is no breakpoint yet.
    pub(super) fn enter_return(&mut self, memory: &Memory, address: u64) -> Result<bool> {
        if let Some((_, calls)) = self.returns.get_mut(&address) {
            *calls += 1;
            return Ok(false);
        }
        let byte = *memory.read(address, 1).first().context("a function returns to nowhere")?;
        self.returns.insert(address, (byte, 1));
        self.stood.insert(address, byte);
        Ok(true)
    }

    /// A call has returned: the byte to put back if it was the last.
    pub(super) fn leave_return(&mut self, address: u64) -> Option<u8> {
        let (byte, calls) = self.returns.get_mut(&address)?;
        *calls -= 1;
        let byte = *byte;
        if *calls > 0 {
            return None;
        }
        self.returns.remove(&address);
        Some(byte)
    }

    /// Looks for libraries that are new in the process, and sets their breakpoints.
    pub(super) fn look(&mut self, pid: Pid, memory: &Memory) -> Result<()> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps.lines() {
            let Some(Mapping { base, path }) = executable(line) else { continue };
            let is_watched = LIBRARIES.iter().any(|name| path.contains(name));
            if is_watched && self.known.insert(path.to_string()) {
                for (name, offset) in functions(path)? {
                    let address = base + offset;
                    let Some(byte) = memory.read(address, 1).first().copied() else { continue };
                    // An indirect function has no instruction of its own there.
                    if byte != INT3 && !self.functions.contains_key(&address) {
                        memory.write(address, &[INT3])?;
                        let is_call = name.starts_with("ibv_") && !name.starts_with("ibv_cmd_");
                        self.stood.insert(address, byte);
                        self.functions.insert(address, Spot { name, byte, is_call });
                    }
                }
            }
        }
        Ok(())
    }
}

struct Mapping<'a> {
    /// Where the file's first byte would be.
    base: u64,
    path: &'a str,
}

/// A line of /proc/PID/maps of a file's instructions.
fn executable(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?.split('-').next()?, 16).ok()?;
    if !words.next()?.contains('x') {
        return None;
    }
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?;
    Some(Mapping { base: start.checked_sub(offset)?, path })
}

/// Functions that are watched in a library, and where they stand in it.
fn functions(path: &str) -> Result<Vec<(String, u64)>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {path}"))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("{path} is no library"))?;
    let is_libibverbs = path.contains(LIBRARIES[0]);
    let wanted = |name: &str| {
        if is_libibverbs {
            ["ibv_", "verbs_", "_verbs_init", "execute_ioctl"]
                .iter()
                .any(|start| name.starts_with(start))
        } else {
            INNER.contains(&name)
        }
    };
    let functions = file.dynamic_symbols().filter(|symbol| {
        symbol.is_definition() && symbol.kind() == SymbolKind::Text && symbol.address() != 0
    });
    Ok(functions
        .filter_map(|symbol| {
            Some((symbol.name().ok().filter(|name| wanted(name))?.to_string(), symbol.address()))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_files_are_found_in_a_list_of_mappings() {
        let line = "7f10-7f20 r-xp 00000010 fe:00 12  /usr/lib/libibverbs.so.1.14";
        let found = executable(line).unwrap();
        assert_eq!((found.base, found.path), (0x7f00, "/usr/lib/libibverbs.so.1.14"));
        for other in [
            "7f10-7f20 r--p 00000010 fe:00 12 /usr/lib/x",
            "7f10-7f20 r-xp 00000000 00:00 0",
            "",
            "x",
        ] {
            assert!(executable(other).is_none(), "{other}");
        }
    }
}
