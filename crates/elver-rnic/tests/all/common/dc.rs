//! DC targets and initiators of tests.

use elver_rnic::Time;
use elver_verbs::*;

use super::{Host, address};

pub const KEY: u64 = 0x0123_4567_89ab_cdef;

pub struct Target {
    pub qp: Qp,
    pub srq: Srq,
    pub number: u32,
}

pub fn dct(host: &mut Host, key: u64, access: AccessFlags) -> Target {
    let pd = host.pd;
    let srq = host.nic.create_srq(SrqInit { pd, max_wr: 64, max_sge: 2 }).unwrap();
    let init =
        QpInit { srq: Some(srq), dc_access_key: key, ..QpInit::new(QpType::Dct, pd, host.cq) };
    let qp = host.nic.create_qp(init).unwrap();
    bring_up_dct(host, qp, access);
    let number = host.nic.qp_num(qp).unwrap();
    Target { qp, srq, number }
}

pub fn bring_up_dct(host: &mut Host, qp: Qp, access: AccessFlags) {
    assert!(host.nic.qp_num(qp).is_err(), "no number before RTR");
    let mut attr = QpAttr { qp_access_flags: access, min_rnr_timer: 1, ..QpAttr::default() };
    attr.ah_attr.dgid = Gid::from(address(0));
    let mut from = QpState::Reset;
    for to in [QpState::Init, QpState::Rtr] {
        attr.qp_state = to;
        let row = qp_state::transition(QpType::Dct, from, to).unwrap();
        host.nic.modify_qp(Time::ZERO, qp, &attr, row.required | QpAttrMask::STATE).unwrap();
        from = to;
    }
}

pub fn dci(host: &mut Host, log_streams: u8, log_errored: u8) -> Qp {
    let dci = DciInit { log_num_concurrent: log_streams, log_num_errored: log_errored };
    let cap = QpCap { max_send_sge: 2, ..QpCap::default() };
    let init = QpInit { cap, dci, sq_sig_all: true, ..QpInit::new(QpType::Dci, host.pd, host.cq) };
    let qp = host.nic.create_qp(init).unwrap();
    host.connect(qp, QpType::Dci, address(0), 0, |_| {});
    qp
}

pub fn handle(host: &mut Host, to: usize) -> Ah {
    let av = AddressVector { dgid: Gid::from(address(to)), ..AddressVector::default() };
    let pd = host.pd;
    host.nic.create_ah(pd, av).unwrap()
}

pub fn dest(ah: Ah, target: &Target, key: u64, stream_id: u16) -> Option<Dest> {
    Some(Dest::Dc { ah, remote_dctn: target.number, dc_access_key: key, stream_id })
}

pub fn statuses(host: &mut Host) -> Vec<WcStatus> {
    host.poll().iter().map(|wc| wc.status).collect()
}

pub fn post_shared(host: &mut Host, srq: Srq, wr_id: u64, at: u64) {
    let sges = [host.sge(at, 8192)];
    host.nic.post_srq_recv(Time(1), srq, &[RecvWr { wr_id, sges: &sges }]).unwrap();
}
