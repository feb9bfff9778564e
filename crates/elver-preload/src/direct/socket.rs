//! The sockets by which processes of a host find each other.

use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, socket_with,
};

use crate::fork::{Unshared, close_in_child};

/// The name of a process's socket, before the address of its device.
const NAME: &str = "elver-direct";
/// Processes that wait to be answered.
const BACKLOG: c_int = 128;
/// How long one of them waits for a word of the other, unless the variable says otherwise, in milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_VARIABLE: &str = "ELVER_DIRECT_PATIENCE_MS";

/// What lets others find the process with a device.
pub(super) fn listen(own: IpAddr) -> Result<OwnedFd, Errno> {
    let listener = seqpacket()?;
    bind(&listener, &name_of(own)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    close_in_child(listener.as_raw_fd());
    Ok(listener)
}

/// To the process with a device, if there is one.
pub(super) fn reach(address: IpAddr) -> Result<Unshared, Errno> {
    let socket = Unshared::of(seqpacket)?;
    be_patient(&socket)?;
    connect(&socket, &name_of(address)?)?;
    Ok(socket)
}

/// To one that asks.
pub(super) fn accept(listener: &OwnedFd) -> Result<Unshared, Errno> {
    let socket = Unshared::of(|| accept_with(listener, SocketFlags::CLOEXEC))?;
    be_patient(&socket)?;
    Ok(socket)
}

pub(super) fn name_of(address: IpAddr) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{NAME}/{address}").as_bytes())
}

pub(super) fn seqpacket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// How long a process waits for a word of another.
pub(super) fn patience() -> Duration {
    static WANTED: LazyLock<Duration> = LazyLock::new(|| {
        let told = std::env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
        // None would be to wait without end.
        told.filter(|ms| *ms > 0).map_or(PATIENCE, Duration::from_millis)
    });
    *WANTED
}

fn be_patient(socket: &OwnedFd) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(patience()))?;
    set_socket_timeout(socket, Timeout::Send, Some(patience()))
}
