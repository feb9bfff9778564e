//! Devices that have another way than the link to somebody, and hear from others by the link.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::pair;
use elver_soft::{Bypass, Carried};
use elver_verbs::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// A way to somebody who sends nothing, and to nobody else.
struct ToOther;

impl Bypass for ToOther {
    fn carry(&mut self, _: IpAddr, _: u8, _: &[u8]) -> Carried {
        Carried::ByLink
    }
    fn ring(&mut self) {}
    fn has_peers(&mut self) -> bool {
        true
    }
    fn has_more(&mut self) -> bool {
        false
    }
    fn take(&mut self, _: &mut [u8]) -> Option<(IpAddr, u8, usize)> {
        None
    }
    fn took(&mut self) {}
}

/// Longer than between two looks at the link.
const SELDOM: Duration = Duration::from_micros(20);

/// What nobody acknowledges comes by the link, and is lost when that is not looked at in time: however seldom the device
/// is driven, it looks each time.
#[test]
fn who_looks_seldom_looks_at_the_link_too() {
    let (mut a, mut b) = pair(22, QpType::Uc, |_| {});
    b.device.set_bypass(Box::new(ToOther));
    let mut wcs = [Wc::default(); 4];
    // All has been quiet for long.
    for _ in 0..10_000 {
        assert_eq!(b.device.poll_cq(b.cq, &mut wcs).unwrap(), 0);
    }
    for round in 0..20 {
        let sge = [b.sge(0, 64)];
        b.device.post_recv(b.qp, &[RecvWr { wr_id: round, sges: &sge }]).unwrap();
        a.post(SendOp::Send, &[a.sge(0, 8)]);
        // The kernel has put it into the socket when the call that sends it returns.
        while a.device.poll_cq(a.cq, &mut wcs).unwrap() == 0 {}
        // On some kernels a thread of its own does, where it has much to do.
        let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
        let socket = b.device.as_fd().unwrap();
        assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)), Ok(1));
        let mut looks = 0;
        let mut found = 0;
        while found == 0 && looks < 1_000 {
            let since = Instant::now();
            while since.elapsed() < SELDOM {
                std::hint::spin_loop();
            }
            found = b.device.poll_cq(b.cq, &mut wcs).unwrap();
            looks += 1;
        }
        assert_eq!((found, looks), (1, 1), "round {round}");
        // And it is quiet again.
        for _ in 0..100 {
            assert_eq!(b.device.poll_cq(b.cq, &mut wcs).unwrap(), 0);
        }
    }
}
