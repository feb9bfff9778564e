//! A device with several addresses.

use std::net::IpAddr;

use crate::common::{Host, Net, address};
use elver_rnic::Config;
use elver_verbs::*;

/// A QP sends to the second address of its device, where its peer is not: the peer expects it at the first. Over
/// packets that is nobody, and within the device as well.
#[test]
fn a_qp_is_found_only_at_the_address_that_it_has() {
    let addresses: [IpAddr; 2] = [0, 1].map(address);
    for sent_to in addresses {
        let config = Config { addresses: addresses.to_vec(), ..Config::for_address(addresses[0]) };
        let mut net = Net::new(0);
        net.hosts.push(Host::new(config, 7));
        let host = &mut net.hosts[0];
        let [own, peer] = [(); 2].map(|()| host.create_qp(QpType::Rc));
        let [own_num, peer_num] = [own, peer].map(|qp| host.nic.qp_num(qp).unwrap());
        let few_tries = |attr: &mut QpAttr| attr.retry_cnt = 1;
        host.connect(own, QpType::Rc, sent_to, peer_num, few_tries);
        host.connect(peer, QpType::Rc, addresses[0], own_num, few_tries);
        let (sge, remote) = (host.sge(0, 64), host.remote(64));
        host.post(net.now, own, SendOp::Write(remote), &[sge], None);
        net.run_clean();
        let found = sent_to == addresses[0];
        let expected = if found { WcStatus::Success } else { WcStatus::RetryExcErr };
        assert_eq!(net.hosts[0].poll()[0].status, expected, "sent to {sent_to}");
    }
}
