"""The control path of the host's libibverbs, from opening the device to the first READ, by a queue pair that is connected to itself."""

import asyncio, decimal, json, time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ
BYTES = 32 << 10


def connect(qp, gid, index):
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ACCESS
    attr.dest_qp_num = qp.qp_num
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=index), is_global=1, port_num=1)
    qp.to_rts(attr)


def read(qp, cq, mr):
    wr = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[SGE(mr.buf + 8, 8, mr.lkey)])
    wr.set_wr_rdma(rkey=mr.rkey, addr=mr.buf)
    qp.post_send(wr)
    while not (done := cq.poll()[1]):
        pass
    if done[0].status != e.IBV_WC_SUCCESS:
        raise RuntimeError(f"a READ completed with status {done[0].status}")


def reads(event, context):
    begun = time.perf_counter_ns()
    device = Context(name=event["device"])
    pd, cq = PD(device), CQ(device, 8)
    mr = MR(pd, BYTES, ACCESS)
    cap = QPCap(max_send_wr=16, max_recv_wr=16)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
    connect(qp, device.query_gid(1, event["gid_index"]), event["gid_index"])
    read(qp, cq, mr)
    took = (time.perf_counter_ns() - begun) / 1000
    device.close()
    return took
