//! A member gone bad: it is registered, agrees to each RC QP that it is asked for, and answers nothing
//! over any.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use elver_core::*;
use elver_sim::Datagram;
use elver_verbs::*;
use elver_wire::{
    Deth, Flow, Headers, Message, PacketView, Psn, Qpn, Route, Tail, UDP_PORT, packet_len,
};

use crate::common::virtual_time::Nodes;

/// Where it is: no host of the simulation's has this address.
const MEMBER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 9, 1));
const QPN: u32 = 0x777;
/// Its answers come so late, in nanoseconds.
const LATE_NS: u64 = 100_000;

fn record() -> NodeRecord {
    NodeRecord {
        dctn: QPN + 1,
        dc_key: 1,
        control_qpn: QPN,
        mrs_rkey: 1,
        log_mrs_max: 7,
        terms: Terms::new(1_000_000, 1_000_000, 1_024),
    }
}

/// What it answers to what a node has sent it: only requests are.
fn answer(to: NodeRecord, asked: &Datagram) -> Option<Datagram> {
    let view = PacketView::parse(&asked.bytes).ok()?;
    let Route::Ud(_) = view.headers().route() else { return None };
    let ControlMessage { id, body } = ControlMessage::decode(view.payload()).ok()?;
    let ControlBody::Request(request) = body else { return None };
    let answer = match request {
        Request::RcConnect { end, .. } => Answer::Accepted(RcEnd { qpn: QPN, ..end }),
        Request::RcFate { psn, .. } => Answer::Fate(Some(psn)),
        Request::RcClose { .. } => Answer::Closed,
        Request::Meta => Answer::Record(record()),
        Request::Alive { .. } => Answer::Alive { turns: true, bound: [None; 8] },
    };
    let mut message = [0; CONTROL_BYTES_MAX];
    let body = ControlBody::Answer(answer);
    let len = ControlMessage { id, body }.encode(&mut message);
    let route = Route::Ud(Deth { qkey: to.control_qkey(), src_qpn: Qpn::from_wrapping(QPN) });
    let dest = Qpn::from_wrapping(to.control_qpn);
    let headers =
        Headers::new(route, Message::SendOnly(Tail::Plain), dest, Psn::from_wrapping(0)).unwrap();
    let flow = Flow {
        src: SocketAddr::new(MEMBER, UDP_PORT),
        dst: SocketAddr::new(asked.flow.src.ip(), UDP_PORT),
    };
    let mut bytes = vec![0; packet_len(headers.header_len(), len)];
    headers.write(&flow, 0, &message[..len], &mut bytes);
    Some(Datagram { flow, traffic_class: 0, bytes })
}

/// Lets so many milliseconds pass, in which it answers node 1.
fn pass(nodes: &mut Nodes, ms: u64) {
    for _ in 0..ms {
        nodes.pause(1_000_000);
        let record = nodes.nodes[1].core.record();
        for answer in nodes.net.take_strays().iter().filter_map(|asked| answer(record, asked)) {
            nodes.net.inject(nodes.net.now().saturating_add_ns(LATE_NS), answer);
        }
        nodes.nodes[1].core.audit().unwrap();
    }
}

/// The VQP that lost its RC QP, and had nothing to post, had the node ask for the next one at once, and
/// so on for ever.
#[test]
fn who_agrees_to_rc_qps_and_answers_nothing_over_them_is_not_asked_for_ever() {
    let config =
        Config { dc_qps: 0, timeout: 9, retry_cnt: 3, recv_buffers: 16, ..Config::default() };
    let mut nodes = Nodes::new(2, &config, ClientLimits::default());
    nodes.net.overhear();
    nodes.nodes[0].core.meta_put(Gid::from(MEMBER), record()).unwrap();
    let vqp = nodes.vqp(1, VqpInit::default());
    let (now, options) = (nodes.net.now(), ConnectOptions::default());
    let crate::common::virtual_time::Node { core, client, .. } = &mut nodes.nodes[1];
    core.qconnect(*client, vqp, Gid::from(MEMBER), 7, options, 1, now).unwrap();
    pass(&mut nodes, 2_000);
    assert_eq!(nodes.connected(1), Some((vqp, Ok(Via::Rc))));
    let links = |nodes: &Nodes| {
        let stats = nodes.nodes[1].core.stats();
        (stats.links_asked, stats.links_made)
    };
    assert_eq!(links(&nodes), (2, 2), "one to the meta server, one to the member");

    // What is posted has it ask once more, and fails then.
    let now = nodes.net.now();
    let crate::common::virtual_time::Node { core, client, .. } = &mut nodes.nodes[1];
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 3, op, flags, payload: Payload::Inline(b"hello"), dest: None };
    core.post_send(*client, vqp, &[wr], now).unwrap();
    pass(&mut nodes, 2_000);
    assert_eq!(links(&nodes), (3, 3));
    let crate::common::virtual_time::Node { core, client, .. } = &mut nodes.nodes[1];
    let mut into = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; 4];
    assert_eq!(core.poll_completions(*client, &mut into), 1);
    assert_eq!((into[0].wc.wr_id, into[0].wc.status), (3, WcStatus::RetryExcErr));
    let holdings = core.audit().unwrap();
    assert_eq!((holdings.rc_qps, holdings.rc_qps_changing), (1, 0), "the meta server's");
}
