/* Threads that wait for events are cancelled, before they wait and in the midst of it, and what they waited at serves the
   next as if they had not been there. */
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <stdint.h>
#include <unistd.h>

#include "../abuse/check.h"

enum { ROUNDS = 200 };

static struct ibv_context *ctx;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct rdma_event_channel *events;
static sem_t begun;
static int cleaned;

static void wait_for_cq(void)
{
	struct ibv_cq *of;
	void *context;
	CODE(ibv_get_cq_event(channel, &of, &context), 0);
	CODE(of == cq, 1);
	ibv_ack_cq_events(of, 1);
}

static void wait_for_async(void)
{
	struct ibv_async_event event;
	CODE(ibv_get_async_event(ctx, &event), 0);
	ibv_ack_async_event(&event);
}

static void wait_for_cm(void)
{
	struct rdma_cm_event *event;
	CODE(rdma_get_cm_event(events, &event), 0);
	CODE(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	CODE(rdma_ack_cm_event(event), 0);
}

/* What does not wait comes to its end, and the program says where the thread does. */
static void polls(void)
{
	struct ibv_wc wc;
	CODE(pthread_cancel(pthread_self()), 0);
	for (int poll = 0; poll < 1000; poll++)
		CODE(ibv_poll_cq(cq, 1, &wc), 0);
	pthread_testcancel();
}

static void cleans(void *argument)
{
	cleaned++;
}

static void *waits(void *wait)
{
	pthread_cleanup_push(cleans, NULL);
	sem_post(&begun);
	((void (*)(void))wait)();
	pthread_cleanup_pop(0);
	return NULL;
}

/* Cancels threads that wait in vain. Whatever a thread was in the midst of, it is reached where it waits. */
static void cancelled(void (*wait)(void))
{
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t thread;
		void *result;
		CODE(pthread_create(&thread, NULL, waits, wait), 0);
		sem_wait(&begun);
		/* Some are on their way, and some have come to the end of it. Beside a busy program each step takes
		   milliseconds. */
		for (int step = 0; step < round % 16; step++)
			sched_yield();
		CODE(pthread_cancel(thread), 0);
		CODE(pthread_join(thread, &result), 0);
		CODE(result == PTHREAD_CANCELED, 1);
		CODE(cleaned, round + 1);
	}
	cleaned = 0;
}

int main(void)
{
	struct ibv_device **list;
	sem_init(&begun, 0, 0);
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(channel, ibv_create_comp_channel(ctx));
	MADE(cq, ibv_create_cq(ctx, 1, NULL, channel, 0));
	MADE(events, rdma_create_event_channel());
	cancelled(wait_for_cq);
	cancelled(wait_for_async);
	cancelled(wait_for_cm);
	cancelled(polls);
	/* Two receives that are flushed: the first tells of itself, and for the second the CQ has no room. */
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	MADE(pd, ibv_alloc_pd(ctx));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 1, 2, 1, 1, 0 } };
	MADE(qp, ibv_create_qp(pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), 0);
	struct ibv_recv_wr wr = { 0 }, *bad;
	CODE(ibv_post_recv(qp, &wr, &bad), 0);
	CODE(ibv_post_recv(qp, &wr, &bad), 0);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	attr.qp_state = IBV_QPS_ERR;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	wait_for_cq();
	wait_for_async();
	struct rdma_cm_id *id;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CODE(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	CODE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
	wait_for_cm();
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
