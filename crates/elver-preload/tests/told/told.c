/* Each asynchronous event of a queue pair, a CQ and a shared receive queue: it comes once, with what it is of, and what it
 * is of cannot go before it is acknowledged. Queue pairs of one process, connected to each other. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "../abuse/check.h"

/* What is waited for that has come, or fails; and what is looked at that must not come. */
enum { PATIENCE_MS = 30000, DEPTH = 16 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint64_t memory[64];

static struct ibv_async_event next(enum ibv_event_type kind)
{
	struct ibv_async_event event;
	struct pollfd comes = { ctx->async_fd, POLLIN };
	if (poll(&comes, 1, PATIENCE_MS) != 1 || ibv_get_async_event(ctx, &event)) {
		printf("no %s comes\n", ibv_event_type_str(kind));
		exit(2);
	}
	CODE(event.event_type, kind);
	return event;
}

static void no_more(void)
{
	struct pollfd comes = { ctx->async_fd, POLLIN };
	CODE(poll(&comes, 1, 0), 0);
}

static struct ibv_cq *queue(int cqe)
{
	struct ibv_cq *cq;
	MADE(cq, ibv_create_cq(ctx, cqe, NULL, NULL, 0));
	return cq;
}

static struct ibv_qp *made(struct ibv_cq *send, struct ibv_cq *recv, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = send, .recv_cq = recv, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { DEPTH, srq ? 0 : DEPTH, 1, srq ? 0 : 1, 16 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	CODE(ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid), 0);
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC),
	     0);
}

static int sends(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1 };
	return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc = { 0 };
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CODE(found, 1);
	return wc;
}

static atomic_int gone;

static void *destroys(void *srq)
{
	CODE(ibv_destroy_srq(srq), 0);
	atomic_store(&gone, 1);
	return NULL;
}

/* IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED. */
static void of_a_shared_receive_queue(void)
{
	struct ibv_cq *cq = queue(DEPTH);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq;
	MADE(srq, ibv_create_srq(pd, &init));
	struct ibv_qp *from = made(cq, cq, NULL), *to = made(cq, cq, srq);
	connect_to(to, from);
	connect_to(from, to);
	struct ibv_sge sge = { (uintptr_t)&memory[8], 8, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	for (int n = 0; n < 4; n++)
		CODE(ibv_post_srq_recv(srq, &wr, &bad), 0);
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	CODE(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	for (int n = 0; n < 3; n++) {
		CODE(sends(from), 0);
		CODE(completion(cq).status | completion(cq).status, IBV_WC_SUCCESS);
	}
	struct ibv_async_event reached = next(IBV_EVENT_SRQ_LIMIT_REACHED);
	CODE(reached.element.srq == srq, 1);
	/* It is disarmed by that: further ones below it tell nothing. */
	no_more();
	CODE(ibv_query_srq(srq, &limit), 0);
	CODE(limit.srq_limit, 0);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CODE(ibv_modify_qp(to, &error, IBV_QP_STATE), 0);
	struct ibv_async_event last = next(IBV_EVENT_QP_LAST_WQE_REACHED);
	CODE(last.element.qp == to, 1);
	ibv_ack_async_event(&last);
	no_more();
	CODE(ibv_destroy_qp(to) | ibv_destroy_qp(from), 0);
	/* It goes when what was told of it is acknowledged, and not before. */
	pthread_t thread;
	CODE(pthread_create(&thread, NULL, destroys, srq), 0);
	for (int n = 0; n < 100; n++)
		sched_yield();
	CODE(atomic_load(&gone), 0);
	ibv_ack_async_event(&reached);
	CODE(pthread_join(thread, NULL), 0);
	CODE(atomic_load(&gone), 1);
	CODE(ibv_destroy_cq(cq), 0);
}

/* IBV_EVENT_SQ_DRAINED, when it was asked for. */
static void of_a_send_queue(void)
{
	struct ibv_cq *cq = queue(DEPTH);
	struct ibv_qp *from = made(cq, cq, NULL), *to = made(cq, cq, NULL);
	connect_to(to, from);
	connect_to(from, to);
	struct ibv_qp_attr drains = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	CODE(ibv_modify_qp(from, &drains, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	struct ibv_async_event drained = next(IBV_EVENT_SQ_DRAINED);
	CODE(drained.element.qp == from, 1);
	ibv_ack_async_event(&drained);
	no_more();
	CODE(ibv_destroy_qp(to) | ibv_destroy_qp(from) | ibv_destroy_cq(cq), 0);
}

/* IBV_EVENT_CQ_ERR, of a CQ that has no room, whose queue pairs fail. */
static void of_a_cq(void)
{
	struct ibv_cq *small = queue(1), *large = queue(4 * DEPTH);
	struct ibv_qp *from = made(small, large, NULL), *to = made(large, large, NULL);
	connect_to(to, from);
	connect_to(from, to);
	struct ibv_sge sge = { (uintptr_t)&memory[8], 8, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	for (int n = 0; n < DEPTH; n++)
		CODE(ibv_post_recv(to, &wr, &bad), 0);
	for (int n = 0; n <= small->cqe && n < DEPTH; n++)
		CODE(sends(from), 0);
	struct ibv_async_event overrun = next(IBV_EVENT_CQ_ERR);
	CODE(overrun.element.cq == small, 1);
	ibv_ack_async_event(&overrun);
	struct ibv_async_event fatal = next(IBV_EVENT_QP_FATAL);
	CODE(fatal.element.qp == from, 1);
	ibv_ack_async_event(&fatal);
	CODE(ibv_destroy_qp(to) | ibv_destroy_qp(from) | ibv_destroy_cq(small) | ibv_destroy_cq(large), 0);
}

/* IBV_EVENT_QP_FATAL, of what each post suffers on demand. */
static void of_a_post(void)
{
	struct ibv_cq *cq = queue(DEPTH);
	struct ibv_qp *from = made(cq, cq, NULL), *to = made(cq, cq, NULL);
	connect_to(to, from);
	connect_to(from, to);
	CODE(sends(from), 0);
	CODE(completion(cq).status, IBV_WC_WR_FLUSH_ERR);
	struct ibv_async_event fatal = next(IBV_EVENT_QP_FATAL);
	CODE(fatal.element.qp == from, 1);
	ibv_ack_async_event(&fatal);
	no_more();
	CODE(ibv_destroy_qp(to) | ibv_destroy_qp(from) | ibv_destroy_cq(cq), 0);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "srq", of_a_shared_receive_queue }, { "sq", of_a_send_queue }, { "cq", of_a_cq },
		      { "post", of_a_post } };
	struct ibv_device **all;
	MADE(all, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(all[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(mr, ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	for (size_t which = 0; which < sizeof(cases) / sizeof(cases[0]); which++)
		if (count > 1 && !strcmp(words[1], cases[which].name))
			cases[which].run();
	CODE(ibv_dereg_mr(mr) | ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0 || checks == 0;
}
