//! Which RDMA devices the kernel shows to this network namespace, in five system calls, as libibverbs asks too.

use std::os::fd::OwnedFd;

use rustix::io::{self, Errno};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::{Chardev, Message};

/// `RDMA_NL_NLDEV`, above the command in a message's type.
const NLDEV: u16 = 5 << 10;
/// The type of who asks for devices: `RDMA_NLDEV_CMD_GET`.
pub const GET: u16 = NLDEV + 1;
/// The type of who asks for a character device: `RDMA_NLDEV_CMD_GET_CHARDEV`.
pub const GET_CHARDEV: u16 = NLDEV + 15;
/// `NETLINK_RDMA`.
pub const RDMA: i32 = 20;
/// `RDMA_NLDEV_ATTR_DEV_INDEX`, `RDMA_NLDEV_ATTR_DEV_NAME`, `RDMA_NLDEV_ATTR_CHARDEV_TYPE`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const CHARDEV_TYPE: u16 = 69;

/// A message's header: length, type, flags, sequence number, port.
const HEADER: usize = 16;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Datagrams of one answer, and the bytes of one: the kernel's own are of at most 32 KB.
const DATAGRAMS_MAX: usize = 256;
const DATAGRAM: usize = 32 << 10;

/// A socket at the kernel's RDMA part.
pub struct Kernel(OwnedFd);

impl Kernel {
    /// Opens one.
    ///
    /// # Errors
    /// The kernel has no RDMA, or the process may not ask it.
    pub fn open() -> io::Result<Kernel> {
        let protocol = Some(netlink::RDMA);
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
            .map(Kernel)
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn devices(&self) -> io::Result<Vec<Message>> {
        self.ask(GET, REQUEST | DUMP, &[])
    }

    /// The character device of the uverbs of one device.
    ///
    /// # Errors
    /// The kernel does not tell; before 5.1 it cannot.
    pub fn chardev(&self, index: u32) -> io::Result<Chardev> {
        let mut wanted = attribute(DEV_INDEX, &index.to_le_bytes());
        wanted.extend(attribute(CHARDEV_TYPE, b"uverbs\0"));
        let answer = self.ask(GET_CHARDEV, REQUEST, &wanted)?.pop().ok_or(Errno::NODATA)?;
        Ok(Chardev { index, answer })
    }

    fn ask(&self, kind: u16, flags: u16, wanted: &[u8]) -> io::Result<Vec<Message>> {
        let mut request = ((HEADER + wanted.len()) as u32).to_le_bytes().to_vec();
        request.extend([kind.to_le_bytes(), flags.to_le_bytes()].concat());
        request.extend([0; 8]);
        request.extend(wanted);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &request, SendFlags::empty(), &kernel)?;
        let mut bytes = vec![0; DATAGRAM];
        let mut messages = Vec::new();
        for _ in 0..DATAGRAMS_MAX {
            let (_, length) = rustix::net::recv(&self.0, &mut *bytes, RecvFlags::TRUNC)?;
            let datagram = bytes.get(..length).ok_or(Errno::MSGSIZE)?;
            // A single answer has no end of its own.
            if take(datagram, &mut messages)? || flags & DUMP == 0 {
                return Ok(messages);
            }
        }
        Err(Errno::MSGSIZE)
    }
}

/// Takes a datagram's messages; true at the end.
fn take(mut datagram: &[u8], messages: &mut Vec<Message>) -> io::Result<bool> {
    while datagram.len() >= HEADER {
        let word = |at: usize| u16::from_le_bytes([datagram[at], datagram[at + 1]]);
        let length =
            u32::from_le_bytes([datagram[0], datagram[1], datagram[2], datagram[3]]) as usize;
        let body = datagram.get(HEADER..length).ok_or(Errno::BADMSG)?;
        match word(4) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_le_bytes(*code));
                return Err(Errno::from_raw_os_error(code.checked_neg().unwrap_or(libc::EINVAL)));
            }
            kind => messages.push(Message { kind, flags: word(6), payload: body.to_vec() }),
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// An attribute, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute's value among those of a message.
fn find(mut payload: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[a, b, c, d]) = payload.first_chunk() {
        let (length, kind) = (usize::from(u16::from_le_bytes([a, b])), u16::from_le_bytes([c, d]));
        let value = payload.get(4..length)?;
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        payload = payload.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// The index that the device of such a message has, or that such a question is about.
pub fn index(payload: &[u8]) -> Option<u32> {
    find(payload, DEV_INDEX)?.first_chunk().map(|index| u32::from_le_bytes(*index))
}

/// The name of the device of such a message.
pub fn name(payload: &[u8]) -> Option<&str> {
    std::str::from_utf8(find(payload, DEV_NAME)?).ok().map(|name| name.trim_end_matches('\0'))
}

/// The message as the kernel sends it, for the question with this sequence number.
pub fn bytes(message: &Message, sequence: u32) -> Vec<u8> {
    let mut bytes = ((HEADER + message.payload.len()) as u32).to_le_bytes().to_vec();
    bytes.extend([message.kind.to_le_bytes(), message.flags.to_le_bytes()].concat());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(&message.payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, name: &[u8]) -> Message {
        let payload = [attribute(DEV_INDEX, &index.to_le_bytes()), attribute(DEV_NAME, name)];
        Message { kind: GET, flags: 2, payload: payload.concat() }
    }

    #[test]
    fn messages_are_taken_apart_as_they_are_put_together() {
        let (one, other) = (device(4, b"rxe0\0"), device(7, b"mlx5_1\0"));
        let mut datagram = [bytes(&one, 1), bytes(&other, 1)].concat();
        let mut messages = Vec::new();
        assert_eq!(take(&datagram, &mut messages), Ok(false));
        assert_eq!(messages, [one.clone(), other]);
        assert_eq!((index(&one.payload), name(&one.payload)), (Some(4), Some("rxe0")));

        datagram.extend(bytes(&Message { kind: NLMSG_DONE, flags: 2, payload: vec![0; 4] }, 1));
        assert_eq!(take(&datagram, &mut messages), Ok(true));
    }

    #[test]
    fn an_error_is_one_and_cut_messages_are_none() {
        let refusal = (-libc::EPERM).to_le_bytes().to_vec();
        let refusal = bytes(&Message { kind: NLMSG_ERROR, flags: 0, payload: refusal }, 1);
        assert_eq!(take(&refusal, &mut Vec::new()), Err(Errno::PERM));
        let worst = i32::MIN.to_le_bytes().to_vec();
        let worst = bytes(&Message { kind: NLMSG_ERROR, flags: 0, payload: worst }, 1);
        assert!(take(&worst, &mut Vec::new()).is_err());
        let whole = bytes(&device(4, b"rxe0\0"), 1);
        assert_eq!(take(&whole[..whole.len() - 1], &mut Vec::new()), Err(Errno::BADMSG));
        for length in 0..4 {
            assert_eq!(find(&[0, 0, 1, 0][..length], 1), None);
        }
        // Lengths of nothing lead nowhere, and not for ever.
        assert_eq!(find(&[0; 64], 1), None);
        assert_eq!(take(&[0; 64], &mut Vec::new()), Err(Errno::BADMSG));
    }
}
