//! What of connections epolls keep where descriptors go, and numbers come again.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

use rustix::event::epoll::{CreateFlags, create};

use super::agree::in_time;
use super::*;
use crate::frame::Nonce;
use crate::tuple::{Side, Tuple};
use crate::{real, tcp};

/// A connection by both its ends, the accepted one second.
fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn tuple(fd: RawFd) -> Tuple {
    Tuple::of(tcp::fd(fd), Side::Acceptor, None).unwrap()
}

/// An epoll of the program's, which the kernel has been asked for a connection, and its number.
fn watches(world: &mut World, fd: RawFd) -> (OwnedFd, u32) {
    let epoll = create(CreateFlags::CLOEXEC).unwrap();
    let number = world.epoll(epoll.as_raw_fd()).unwrap();
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: the event stands here.
    let added = unsafe { real::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
    assert_eq!(added, 0);
    world.watch(number, Entry::new(fd, fds::conn(fd).unwrap(), &event));
    (epoll, number)
}

/// What the kernel tells of that, within so many milliseconds, beside the stirring of who waits there.
fn told(epoll: &OwnedFd, millis: i32) -> Vec<u64> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    let (fd, none) = (epoll.as_fd().as_raw_fd(), std::ptr::null());
    // SAFETY: so many events fit there.
    let count = unsafe { real::epoll_pwait(fd, events.as_mut_ptr(), 4, millis, none) };
    let told = &mut events[..usize::try_from(count).unwrap()];
    let ours = crate::epolls::kept(told);
    told[..ours].iter().map(|event| event.u64).collect()
}

/// What had its number was closed by a call that this library does not stand before.
#[test]
fn an_accepted_connection_has_nothing_of_the_former_one_of_its_number() {
    let mut world = World::new(0);
    let (_client, former) = connected();
    let fd = former.into_raw_fd();
    world.add(fd, tuple(fd), Side::Acceptor);
    let (_epoll, number) = watches(&mut world, fd);
    let (_other, new) = connected();
    // SAFETY: the number is this test's.
    assert_eq!(unsafe { real::dup2(new.as_raw_fd(), fd) }, fd);
    world.add(fd, tuple(fd), Side::Acceptor);
    assert_eq!(world.conns.len(), 1);
    assert!(world.epolls[&number].entries().is_empty());
    world.close(fd);
    // SAFETY: as above.
    assert_eq!(unsafe { real::close(fd) }, 0);
}

/// An offer stands, and the copy is closed that an epoll has: it tells by TCP, and by a stream when one comes.
#[test]
fn an_epoll_keeps_a_connection_of_which_an_offer_stands() {
    let mut world = World::new(0);
    let (mut client, kept) = connected();
    let closed = kept.try_clone().unwrap();
    let (fd, copy) = (kept.as_raw_fd(), closed.as_raw_fd());
    world.add(fd, tuple(fd), Side::Acceptor);
    world.copied(fd, copy);
    let id = fds::conn(fd).unwrap();
    let (epoll, number) = watches(&mut world, copy);
    let meeting = Meeting::open(tuple(fd), Side::Acceptor).unwrap();
    let phase = Phase::Offered { meeting, nonce: Nonce::default(), until_ns: u64::MAX };
    world.conn(id).unwrap().phase = phase;
    world.close(copy);
    drop(closed);
    client.write_all(b"x").unwrap();
    wait_until_readable(&kept);
    assert_eq!(told(&epoll, 0), [7]);
    let entries = world.epolls[&number].entries();
    assert_eq!(entries.iter().map(|entry| entry.conn).collect::<Vec<_>>(), [id]);
    world.close(fd);
    assert!(world.epolls[&number].entries().is_empty());
}

fn wait_until_readable(stream: &TcpStream) {
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
}

/// It was judged by the time before it was looked for.
#[test]
fn a_stream_that_is_found_when_its_offer_is_void_is_late() {
    let now = std::cell::Cell::new(9);
    let found = |took: u64| in_time(|| now.replace(now.get() + took), || now.get(), 10);
    assert_eq!(found(1), (9, false));
    assert_eq!(found(1), (10, true));
}
