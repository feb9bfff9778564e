/* WRs as programs have them that do not use the header: no more of one than what its operation has, at any address. Behind each is
   memory that nobody may read. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/mman.h>

#include "check.h"

enum { PAGE = 4096, LENGTH = 64, HEAD = 72, RECEIVE = 28 };
_Static_assert(offsetof(struct ibv_send_wr, qp_type) == HEAD, "DiSNI's layout");
_Static_assert(offsetof(struct ibv_recv_wr, num_sge) + 4 == RECEIVE, "the last field's end");

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static uint64_t memory[2 * LENGTH / 8];
static char *const from = (char *)memory, *const to = (char *)memory + LENGTH;
/* For an SGE, a WR and what is told of the one that failed. */
static char *ends[3];

/* A copy of what a program gives, that ends so many bytes before a page that is not there. */
static void *placed(int which, const void *what, size_t length, int before)
{
	return memcpy(ends[which] - before - length, what, length);
}

static struct ibv_qp *made(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { 4, 4, 1, 1, 16 } };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX
		| (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), 0);
	return qp;
}

static void ready(struct ibv_qp *qp, struct ibv_qp *peer)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 4, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	CODE(ibv_modify_qp(qp, &attr, ud ? IBV_QP_STATE : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
		| IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &attr, ud ? IBV_QP_STATE | IBV_QP_SQ_PSN : IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
		| IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CODE(found, 1);
	CODE(wc.status, IBV_WC_SUCCESS);
	return wc;
}

/* The SGE and the WR lie at their pages' ends, or a byte before. */
static void post(struct ibv_qp *qp, struct ibv_send_wr wr, int before)
{
	struct ibv_sge sge = { (uintptr_t)from, 8, mr->lkey };
	struct ibv_send_wr *bad;
	wr.wr_id = 0x1234;
	wr.num_sge = 1;
	wr.sg_list = placed(0, &sge, sizeof sge, before);
	CODE(ibv_post_send(qp, placed(1, &wr, HEAD, before), &bad), 0);
}

static void posts(struct ibv_qp *qp, struct ibv_send_wr wr, int before)
{
	wr.send_flags |= IBV_SEND_SIGNALED;
	post(qp, wr, before);
	CODE(next().wr_id, 0x1234);
}

static void receives(struct ibv_qp *qp, int before)
{
	struct ibv_sge sge = { (uintptr_t)to, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 0x4321, .sg_list = placed(0, &sge, sizeof sge, before), .num_sge = 1 }, *bad;
	CODE(ibv_post_recv(qp, placed(1, &wr, RECEIVE, before), &bad), 0);
}

static void reliable(int before)
{
	struct ibv_qp *one = made(IBV_QPT_RC), *other = made(IBV_QPT_RC);
	ready(one, other);
	ready(other, one);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)to, mr->rkey } };
	memory[0] = 5;
	posts(one, wr, before);
	CODE(to[0], 5);
	memory[0] = 6;
	wr.send_flags = IBV_SEND_INLINE;
	posts(one, wr, before);
	CODE(to[0], 6);
	to[0] = 7;
	wr.send_flags = 0;
	wr.opcode = IBV_WR_RDMA_READ;
	posts(one, wr, before);
	CODE(from[0], 7);
	struct ibv_send_wr atomic = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { (uintptr_t)to, 3, 0, mr->rkey } };
	posts(one, atomic, before);
	CODE(to[0], 10);
	atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	atomic.wr.atomic.compare_add = 10;
	atomic.wr.atomic.swap = 12;
	posts(one, atomic, before);
	CODE(to[0], 12);
	CODE(from[0], 10);
	receives(other, before);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 0x55 };
	post(one, send, before);
	struct ibv_wc wc = next();
	CODE(wc.wr_id, 0x4321);
	CODE(wc.imm_data, 0x55);
	CODE(to[0], 10);
	/* Which WR failed is told at any address too: the second, to whose operation there is no number. */
	struct ibv_send_wr *bad, second = { .opcode = 77 };
	send.opcode = IBV_WR_RDMA_WRITE;
	send.wr.rdma.remote_addr = (uintptr_t)to;
	send.wr.rdma.rkey = mr->rkey;
	send.next = placed(0, &second, HEAD, before);
	void *tells = placed(2, &(void *){ NULL }, sizeof bad, before);
	CODE(ibv_post_send(one, placed(1, &send, HEAD, before), tells), EINVAL);
	memcpy(&bad, tells, sizeof bad);
	CODE(bad == send.next, 1);
	struct ibv_recv_wr *bad_receive, receive = { .num_sge = 1000 };
	CODE(ibv_post_recv(one, placed(1, &receive, RECEIVE, before), tells), EINVAL);
	memcpy(&bad_receive, tells, sizeof bad_receive);
	CODE((char *)bad_receive == ends[1] - before - RECEIVE, 1);
	CODE(ibv_destroy_qp(one), 0);
	CODE(ibv_destroy_qp(other), 0);
}

static void datagrams(int before)
{
	struct ibv_qp *qp = made(IBV_QPT_UD);
	ready(qp, qp);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	struct ibv_ah *ah;
	MADE(ah, ibv_create_ah(pd, &way));
	receives(qp, before);
	memory[0] = 9;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr.ud = { ah, qp->qp_num, 7 } };
	post(qp, wr, before);
	struct ibv_wc wc = next();
	CODE(wc.wr_id, 0x4321);
	CODE(wc.byte_len, 40 + 8);
	CODE(to[40], 9);
	CODE(ibv_destroy_ah(ah), 0);
	CODE(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	struct ibv_device **list;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(cq, ibv_create_cq(ctx, 16, NULL, NULL, 0));
	MADE(mr, ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
		| IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
	CODE(ibv_query_gid(ctx, 1, 0, &gid), 0);
	for (int which = 0; which < 3; which++) {
		char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CODE(pages == MAP_FAILED, 0);
		ends[which] = pages + PAGE;
		CODE(mprotect(ends[which], PAGE, PROT_NONE), 0);
	}
	for (int before = 0; before < 8; before++) {
		reliable(before);
		datagrams(before);
	}
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
