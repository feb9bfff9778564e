//! What a device says of how far it has taken what arrived.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use elver_soft::SoftConfig;
use elver_verbs::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::common::End;

fn open(host: u8) -> End {
    let config = SoftConfig::for_address(IpAddr::from([127, 0, 25, host]));
    End::open(SoftConfig { rcvbuf: 16 << 10, ..config }, QpType::Rc)
}

/// Datagrams for a device, which are nobody's.
struct Stranger {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Stranger {
    fn of(end: &End) -> Stranger {
        let address = end.device.address();
        let to = (address, SoftConfig::for_address(address).rnic.udp_port).into();
        Stranger { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), to }
    }

    /// Sends one, and waits until it is there.
    fn send(&self, end: &End) {
        self.socket.send_to(&[0; 40], self.to).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(end.device.as_fd().unwrap(), PollFlags::IN)];
        let most = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&most)), Ok(1), "nothing came");
    }
}

#[test]
fn a_look_that_finds_nothing_says_so_once() {
    let mut end = open(1);
    assert_eq!(end.device.intake(), Intake::Behind, "nobody has looked");
    while end.device.progress() {}
    assert_eq!(end.device.intake(), Intake::Empty);
    assert_eq!(end.device.intake(), Intake::Behind, "nobody has looked since");
    Stranger::of(&end).send(&end);
    assert!(end.device.progress());
    assert_eq!(end.device.intake(), Intake::Behind, "more may have waited behind it");
    while end.device.progress() {}
    assert_eq!(end.device.intake(), Intake::Empty);
}

#[test]
fn completions_that_wait_are_no_look() {
    let mut end = open(2);
    let (address, qpn) = (end.device.address(), end.device.qp_num(end.qp).unwrap());
    end.connect(address, qpn);
    let sges = [end.sge(0, 8)];
    end.post(SendOp::Write(end.remote(64)), &sges);
    let mut wcs = [Wc::default(); 4];
    while end.device.poll_cq(end.cq, &mut wcs).unwrap() == 0 {}
    // The next one completes when it is driven; what it has completed is given without another look.
    end.post(SendOp::Write(end.remote(64)), &sges);
    while end.device.progress() {}
    let _ = end.device.intake();
    assert_eq!(end.device.poll_cq(end.cq, &mut wcs), Ok(1));
    assert_eq!(end.device.intake(), Intake::Behind);
    assert_eq!(end.device.poll_cq(end.cq, &mut wcs), Ok(0));
    assert_eq!(end.device.intake(), Intake::Empty);
}

/// Looks take one datagram alone, and cannot tell, until they have found some in a row.
#[test]
fn a_look_that_takes_all_says_so() {
    let mut end = open(3);
    let stranger = Stranger::of(&end);
    let mut said = Vec::new();
    for _ in 0..4 {
        stranger.send(&end);
        assert!(end.device.progress());
        said.push(end.device.intake());
    }
    assert_eq!(said, [Intake::Behind, Intake::Behind, Intake::Behind, Intake::Empty]);
}
