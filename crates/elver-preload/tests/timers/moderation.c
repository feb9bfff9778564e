/* Events that wait for more completions, or for a while: receives of a QP that has failed complete one by one as they are
   posted. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>

#include "../abuse/check.h"

/* A round in which this process had to wait for the processor proves nothing about counts. */
enum { ROUNDS = 20, PERIOD_US = 65535, LONG_MS = 20000 };

static struct ibv_context *ctx;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static long long now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int moderate(int count, int period)
{
	struct ibv_modify_cq_attr attr = { IBV_CQ_ATTR_MODERATE, { count, period } };
	return ibv_modify_cq(cq, &attr);
}

static void complete(int count)
{
	struct ibv_recv_wr wr = { 0 }, *bad;
	while (count--)
		CODE(ibv_post_recv(qp, &wr, &bad), 0);
}

static int comes(int ms)
{
	struct pollfd fd = { channel->fd, POLLIN };
	return poll(&fd, 1, ms);
}

static void take(int completions)
{
	struct ibv_wc wc[8];
	struct ibv_cq *of;
	void *context;
	CODE(ibv_get_cq_event(channel, &of, &context), 0);
	ibv_ack_cq_events(of, 1);
	CODE(ibv_poll_cq(cq, 8, wc), completions);
	CODE(wc[0].status, IBV_WC_WR_FLUSH_ERR);
}

/* Whether the event came of the third completion. */
static int third_tells(void)
{
	CODE(ibv_req_notify_cq(cq, 0), 0);
	long long begun = now_us();
	complete(2);
	int early = comes(1);
	if (now_us() - begun < PERIOD_US)
		CODE(early, 0);
	complete(1);
	CODE(comes(LONG_MS), 1);
	int proven = now_us() - begun < PERIOD_US;
	take(3);
	return proven;
}

int main(void)
{
	struct ibv_modify_cq_attr attr = { IBV_CQ_ATTR_MODERATE << 1 };
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_device_attr_ex caps;
	struct ibv_device **list;
	struct ibv_pd *pd;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(channel, ibv_create_comp_channel(ctx));
	MADE(cq, ibv_create_cq(ctx, 8, NULL, channel, 0));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 8, 1, 1, 0 } };
	MADE(qp, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	state.qp_state = IBV_QPS_ERR;
	CODE(ibv_modify_qp(qp, &state, IBV_QP_STATE), 0);

	CODE(ibv_query_device_ex(ctx, NULL, &caps), 0);
	CODE(caps.cq_mod_caps.max_cq_count, 65535);
	CODE(caps.cq_mod_caps.max_cq_period, 65535);
	CODE(ibv_modify_cq(cq, &attr), EINVAL);
	CODE(ibv_modify_cq(cq, NULL), EINVAL);
	attr.attr_mask = 0;
	CODE(ibv_modify_cq(cq, &attr), 0);

	CODE(moderate(3, PERIOD_US), 0);
	int proven = 0;
	for (int round = 0; round < ROUNDS && !proven; round++)
		proven = third_tells();
	check("the third completion tells", proven, 1);

	/* What was there before the program asked counts for nothing. */
	complete(2);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	long long begun = now_us();
	complete(1);
	CODE(comes(LONG_MS), 1);
	check("one alone waits for the period", now_us() - begun >= PERIOD_US, 1);
	take(3);

	/* Either at 0 is off, and so is one. */
	for (int off = 0; off < 3; off++) {
		CODE(moderate((int[]){ 0, 3, 1 }[off], (int[]){ PERIOD_US, 0, PERIOD_US }[off]), 0);
		CODE(ibv_req_notify_cq(cq, 0), 0);
		complete(1);
		CODE(comes(LONG_MS), 1);
		take(1);
	}

	/* An event that waits goes with its CQ. */
	CODE(moderate(3, PERIOD_US), 0);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	complete(1);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_destroy_comp_channel(channel), 0);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
