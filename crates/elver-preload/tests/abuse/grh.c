/* What a completion says of the 40 bytes before a datagram: IBV_WC_GRH, in a plain CQ and in an extended one. */
#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

enum { LENGTH = 64, GRH = 40, BYTES = 8 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static char memory[2 * LENGTH];

static struct ibv_qp *made(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return qp;
}

/* A datagram to the queue pair itself; only its receive completes. */
static void sends(struct ibv_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_sge to = { (uintptr_t)memory, LENGTH, mr->lkey }, from = { (uintptr_t)memory + LENGTH, BYTES, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .opcode = opcode, .sg_list = &from, .num_sge = 1, .wr.ud = { ah, qp->qp_num, 7 } }, *bad;
	CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	CODE(ibv_post_send(qp, &send, &bad), 0);
}

int main(void)
{
	struct ibv_device **list;
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(mr, ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	CODE(ibv_query_gid(ctx, 1, 0, &way.grh.dgid), 0);
	MADE(ah, ibv_create_ah(pd, &way));
	struct ibv_cq_init_attr_ex wanted = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *extended;
	struct ibv_cq *plain;
	MADE(plain, ibv_create_cq(ctx, 4, NULL, NULL, 0));
	MADE(extended, ibv_create_cq_ex(ctx, &wanted));
	struct ibv_qp *one = made(plain), *other = made(ibv_cq_ex_to_cq(extended));
	for (int with_imm = 0; with_imm < 2; with_imm++) {
		enum ibv_wr_opcode opcode = with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		unsigned int flags = IBV_WC_GRH | (with_imm ? IBV_WC_WITH_IMM : 0);
		struct ibv_wc wc;
		sends(one, opcode);
		int polled;
		while (!(polled = ibv_poll_cq(plain, 1, &wc)))
			;
		CODE(polled, 1);
		CODE(wc.status, IBV_WC_SUCCESS);
		CODE(wc.wc_flags, flags);
		CODE(wc.byte_len, GRH + BYTES);
		sends(other, opcode);
		struct ibv_poll_cq_attr none = { 0 };
		while (ibv_start_poll(extended, &none) == ENOENT)
			;
		CODE(extended->status, IBV_WC_SUCCESS);
		CODE(ibv_wc_read_wc_flags(extended), flags);
		CODE(ibv_wc_read_byte_len(extended), GRH + BYTES);
		ibv_end_poll(extended);
	}
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
