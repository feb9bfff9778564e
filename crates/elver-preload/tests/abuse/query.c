/* What a QP says of itself. */
#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *made(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	return qp;
}

static struct ibv_qp_attr queried(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CODE(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV, &init), 0);
	return attr;
}

static void connect_to(struct ibv_qp *qp, union ibv_gid gid, uint32_t dest)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = dest;
	/* Of what has too many bits for a packet or for hardware, neither rdma_rxe nor hardware complains. */
	attr.min_rnr_timer = 33;
	attr.ah_attr = (struct ibv_ah_attr){
		.is_global = 1, .port_num = 1, .sl = 3, .src_path_bits = 5, .static_rate = IBV_RATE_10_GBPS,
		.grh = { .dgid = gid, .hop_limit = 64 },
	};
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 9;
	attr.rnr_retry = 255;
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC),
	     0);
}

int main(void)
{
	struct ibv_device **list;
	union ibv_gid gid;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(cq, ibv_create_cq(ctx, 8, NULL, NULL, 0));
	CODE(ibv_query_gid(ctx, 1, 0, &gid), 0);
	struct ibv_qp *qp = made(), *peer = made();
	connect_to(qp, gid, peer->qp_num);
	connect_to(peer, gid, qp->qp_num);

	/* What means nothing on Ethernet is told as it was given. */
	struct ibv_qp_attr attr = queried(qp);
	CODE(attr.ah_attr.sl, 3);
	CODE(attr.ah_attr.src_path_bits, 5);
	CODE(attr.ah_attr.static_rate, IBV_RATE_10_GBPS);
	CODE(attr.sq_draining, 0);
	CODE(attr.min_rnr_timer, 1);
	CODE(attr.retry_cnt, 7);
	CODE(attr.rnr_retry, 7);

	/* A SEND that has started and finds no receive is drained with one. */
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CODE(ibv_post_send(qp, &wr, &bad), 0);
	attr.qp_state = IBV_QPS_SQD;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr = queried(qp);
	CODE(attr.qp_state, IBV_QPS_SQD);
	CODE(attr.sq_draining, 1);
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	CODE(ibv_post_recv(peer, &recv, &bad_recv), 0);
	struct ibv_wc wc;
	for (int done = 0; done < 2;)
		done += ibv_poll_cq(cq, 1, &wc);
	attr = queried(qp);
	CODE(attr.qp_state, IBV_QPS_SQD);
	CODE(attr.sq_draining, 0);

	attr.qp_state = IBV_QPS_RESET;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CODE(queried(qp).ah_attr.sl, 0);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_qp(peer), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(ctx), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
