//! The process's side.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use elver_wire::cm::MAD_LEN;
use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use rustix::io::{Errno, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};
use rustix::process::{Resource, getrlimit};

use crate::record::{RECORD, RECORDS_MAX, address, of_address, write};

/// What is to be told to peers if this process ends without having told them.
#[derive(Debug)]
pub struct Farewells {
    table: OwnedFd,
    /// Its other end is the keeper's, who sees when it closes.
    socket: OwnedFd,
    records: BTreeMap<u32, usize>,
    /// Records that were used and are free.
    free: Vec<usize>,
    /// The first that was never used.
    next: usize,
}

impl Farewells {
    /// Has the keeper of this name watch over this process, whose device is at `own`.
    ///
    /// # Errors
    /// Of the system: there is no such keeper, or no descriptor is left.
    pub fn new(name: &str, own: IpAddr) -> Result<Farewells, Errno> {
        let table = memfd_create("elver-farewells", MemfdFlags::CLOEXEC)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [table.as_fd()];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        let body = of_address(own);
        sendmsg(&socket, &[IoSlice::new(&body)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(Farewells { table, socket, records: BTreeMap::new(), free: Vec::new(), next: 0 })
    }

    /// Keeps what ends a connection, in place of what was kept for it before; nothing if there is no more room.
    pub fn keep(&mut self, connection: u32, peer: IpAddr, mad: &[u8; MAD_LEN]) {
        let known = self.records.get(&connection).copied();
        let Some(at) = known.or_else(|| self.free.pop()).or_else(|| self.fresh()) else { return };
        self.records.insert(connection, at);
        self.put(at, &write(Some(&(peer, *mad))));
    }

    /// Has nothing said of a connection any more.
    pub fn forget(&mut self, connection: u32) {
        if let Some(at) = self.records.remove(&connection) {
            self.put(at, &write(None));
            self.free.push(at);
        }
    }

    /// The descriptors, which a child must not have: with them it would be taken for this process.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.table.as_fd()]
    }

    fn fresh(&mut self) -> Option<usize> {
        (self.next < RECORDS_MAX).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn put(&self, at: usize, record: &[u8; RECORD]) {
        // What memory has no room for is not told of, nor what would be too long a file, which would be the process's end
        // (`SIGXFSZ`); nothing else depends on it.
        let end = ((at + 1) * RECORD) as u64;
        if getrlimit(Resource::Fsize).current.is_none_or(|limit| end <= limit) {
            let _ = pwrite(&self.table, record, (at * RECORD) as u64);
        }
    }
}

/// What a process that wants to be watched sends: where its device is, and its file.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(IpAddr, OwnedFd)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut body = [0; 17];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut body)];
    let got = recvmsg(socket, &mut into, &mut control, flags)?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let table = fds.by_ref().flatten().next();
    // Of a file that is not in memory a read could take as long as somebody likes.
    let table = table.filter(|table| fcntl_get_seals(table).is_ok());
    Ok(address(&body[..got.bytes]).zip(table))
}
