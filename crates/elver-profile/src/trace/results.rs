//! Inner results: what a program reads in files and directories, and is told by netlink.

use std::collections::HashMap;

use super::memory::Memory;

/// The numbers of system calls of x86-64; see `names`.
const READ: u64 = 0;
const OPEN: u64 = 2;
const CLOSE: u64 = 3;
const PREAD64: u64 = 17;
const SOCKET: u64 = 41;
const SENDTO: u64 = 44;
const RECVFROM: u64 = 45;
const SENDMSG: u64 = 46;
const RECVMSG: u64 = 47;
const GETDENTS64: u64 = 217;
const OPENAT: u64 = 257;
const NEWFSTATAT: u64 = 262;

const AF_NETLINK: u64 = 16;
const BYTES_MAX: usize = 64 << 10;

/// What descriptors are.
#[derive(Default)]
pub(super) struct Files {
    open: HashMap<u64, What>,
    /// The path of the call that a thread is in. A path's memory may be gone when it is over.
    path: String,
}

enum What {
    /// A file, and how often it was read since it was opened: its parts, and its end, are each themselves.
    File(String, u32),
    /// A netlink socket, and what was asked there last.
    Netlink(String),
}

impl Files {
    pub(super) fn enters(&mut self, memory: &Memory, number: u64, arguments: [u64; 4]) {
        match number {
            OPEN => self.path = memory.string(arguments[0]),
            OPENAT | NEWFSTATAT => self.path = memory.string(arguments[1]),
            _ => {}
        }
    }

    /// A system call is over: tells `found` of what it found.
    pub(super) fn leaves(
        &mut self,
        memory: &Memory,
        number: u64,
        arguments: [u64; 4],
        result: i64,
        mut found: impl FnMut(String, u32),
    ) {
        let [first, second, ..] = arguments;
        let bytes =
            |at, length: i64| memory.read(at, usize::try_from(length).unwrap_or(0).min(BYTES_MAX));
        match number {
            OPEN | OPENAT => {
                let path = std::mem::take(&mut self.path);
                match u64::try_from(result) {
                    Ok(descriptor) => drop(self.open.insert(descriptor, What::File(path, 0))),
                    Err(_) => found(format!("no file {path}"), hash(&result.to_le_bytes())),
                }
            }
            // Whether it is there, and not of what age.
            NEWFSTATAT if !self.path.is_empty() => {
                found(format!("status of {}", self.path), hash(&result.to_le_bytes()));
            }
            CLOSE => drop(self.open.remove(&first)),
            SOCKET if first == AF_NETLINK => {
                if let Ok(descriptor) = u64::try_from(result) {
                    self.open.insert(descriptor, What::Netlink(String::new()));
                }
            }
            READ | PREAD64 | GETDENTS64 => {
                if let Some(What::File(path, reads)) = self.open.get_mut(&first) {
                    *reads += 1;
                    let part = if *reads > 1 { format!(", part {reads}") } else { String::new() };
                    // A directory's entries have numbers of their own, which change when it is made again.
                    let kind = if number == GETDENTS64 { "directory" } else { "file" };
                    found(format!("{kind} {path}{part}"), hash(&bytes(second, result)));
                }
            }
            SENDTO | SENDMSG => {
                if let Some(What::Netlink(asked)) = self.open.get_mut(&first) {
                    let (at, length) =
                        if number == SENDMSG { buffer(memory, second) } else { (second, result) };
                    let question = without_numbers(bytes(at, length.min(result)));
                    let kind =
                        question.get(4..6).map_or(0, |kind| u16::from_le_bytes([kind[0], kind[1]]));
                    *asked = format!("netlink answer to {kind:#x} of {:08x}", hash(&question));
                }
            }
            RECVFROM | RECVMSG => {
                if let Some(What::Netlink(asked)) = self.open.get(&first) {
                    let (at, _) =
                        if number == RECVMSG { buffer(memory, second) } else { (second, result) };
                    let answer = without_numbers(bytes(at, result));
                    // The end of an answer is another message, and always the same.
                    let end = answer.get(4..6) == Some(&[3, 0]);
                    found(format!("{asked}{}", if end { ", end" } else { "" }), hash(&answer));
                }
            }
            _ => {}
        }
    }
}

/// The first part of a `struct msghdr`: where, and how long.
fn buffer(memory: &Memory, message: u64) -> (u64, i64) {
    let word = |at| memory.word(at).unwrap_or(0);
    let parts = word(message + 16);
    (word(parts), word(parts + 8) as i64)
}

/// Netlink messages without the numbers of who asks.
fn without_numbers(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..at + 16) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        header[8..16].fill(0);
        if length < 16 {
            break;
        }
        at += length.next_multiple_of(4);
    }
    bytes
}

fn hash(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_who_asks_are_taken_from_each_message() {
        let mut message = 20u32.to_le_bytes().to_vec();
        message.extend([1, 0, 2, 0]);
        message.extend([7; 8]);
        message.extend([9; 4]);
        let two = [message.clone(), message].concat();
        let bare = without_numbers(two);
        assert_eq!(
            (&bare[8..16], &bare[28..36], bare[19], bare[39]),
            (&[0; 8][..], &[0; 8][..], 9, 9)
        );
        assert_eq!(without_numbers(vec![0; 40]), vec![0; 40]);
        assert_eq!(without_numbers(vec![0xff; 40]).len(), 40);
    }
}
