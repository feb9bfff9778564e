//! What a device does with those whom it does not know: nothing that they could use.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod common;

use common::dc::{KEY, dci, dct, dest, handle, statuses};
use common::{ALL_ACCESS, Net, address};
use elver_verbs::*;
use elver_wire::{PacketView, Route};

/// A device that counts one number for all its sessions tells each target what it tells the others.
#[test]
fn a_target_cannot_tell_the_numbers_of_sessions_with_others() {
    let mut net = Net::new(3);
    let targets = [1, 2].map(|host| dct(&mut net.hosts[host], KEY, ALL_ACCESS));
    let qp = dci(&mut net.hosts[0], 0, 0);
    let ahs = [1, 2].map(|host| handle(&mut net.hosts[0], host));
    let mut sessions = [const { Vec::new() }; 2];
    for round in 0..40 {
        let which = round % 2;
        let to = dest(ahs[which], &targets[which], KEY, 0);
        let (remote, sge) = (net.hosts[1 + which].remote(0), [net.hosts[0].sge(0, 64)]);
        net.hosts[0].post(net.now, qp, SendOp::Write(remote), &sge, to);
        net.run(|packet| {
            let view = PacketView::parse(&packet.bytes).unwrap();
            if packet.flow.dst.ip() == address(1 + which)
                && let Route::Dc { eth, connect: Some(_) } = view.headers().route()
            {
                sessions[which].push(eth.session);
            }
            1
        });
        assert_eq!(statuses(&mut net.hosts[0]), [WcStatus::Success]);
    }
    let [to_one, to_other] = &sessions;
    let grows = |pair: &[u32]| (pair[1].wrapping_sub(pair[0]) as i32) > 0;
    assert!(to_one.len() == 20 && to_one.windows(2).all(grows), "{to_one:?}");
    let apart = to_one[0].abs_diff(to_other[0]);
    assert!(apart > 1 << 16, "{to_one:?} and {to_other:?} begin {apart} from each other");
}
