/* The descriptors that programs wait by: a completion channel's, a device's and an rdma_cm channel's. They are readable as long as there
   is an event, and never writable; each event is an edge. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../abuse/check.h"

/* More than a pipe has room for. */
enum { MANY = 9000 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *events;

static struct ibv_qp *made(struct ibv_srq *of)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = of, .qp_type = IBV_QPT_RC,
		.cap = { 1, of ? 0 : 1, 1, of ? 0 : 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	return qp;
}

static void fails(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

/* A receive that is flushed. */
static void completes(void)
{
	struct ibv_qp *qp = made(NULL);
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_wc wc;
	CODE(ibv_post_recv(qp, &wr, &bad), 0);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	fails(qp);
	CODE(ibv_poll_cq(cq, 1, &wc), 1);
	CODE(ibv_destroy_qp(qp), 0);
}

static int take_completion(void)
{
	struct ibv_cq *of;
	void *context;
	if (ibv_get_cq_event(channel, &of, &context))
		return errno;
	CODE(of == cq && context == &cq, 1);
	ibv_ack_cq_events(of, 1);
	return 0;
}

/* A queue pair whose shared receive queue gives it no more. */
static struct ibv_qp *last[8];
static int made_last, taken_last;

static void tells(void)
{
	struct ibv_qp *qp = made(srq);
	last[made_last++ % 8] = qp;
	fails(qp);
}

static int take_async(void)
{
	struct ibv_async_event event;
	if (ibv_get_async_event(ctx, &event))
		return errno;
	CODE(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	CODE(event.element.qp == last[taken_last++ % 8], 1);
	ibv_ack_async_event(&event);
	CODE(ibv_destroy_qp(event.element.qp), 0);
	return 0;
}

static void resolves(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CODE(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	CODE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
}

static int take_resolved(void)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(events, &event))
		return errno;
	struct rdma_cm_id *id = event->id;
	CODE(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	CODE(rdma_ack_cm_event(event) | rdma_destroy_id(id), 0);
	return 0;
}

static int polled(int fd)
{
	struct pollfd comes = { fd, POLLIN | POLLOUT | POLLPRI };
	return poll(&comes, 1, 0) ? comes.revents : 0;
}

static int edges(int set)
{
	struct epoll_event event = { 0 };
	return epoll_wait(set, &event, 1, 0) ? (int)event.events : 0;
}

static int set_of(int fd, uint32_t wanted)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = wanted };
	CODE(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
	return set;
}

static int selected(int fd)
{
	fd_set reads, writes;
	struct timeval now = { 0, 0 };
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(fd, &reads);
	FD_SET(fd, &writes);
	CODE(select(fd + 1, &reads, &writes, NULL, &now) < 0, 0);
	return FD_ISSET(fd, &reads) + 2 * FD_ISSET(fd, &writes);
}

static _Atomic pid_t taker;

static void *takes(void *take)
{
	taker = gettid();
	CODE(((int (*)(void))take)(), 0);
	return NULL;
}

static void descriptor(int fd, void (*make)(void), int (*take)(void))
{
	CODE(polled(fd), 0);
	CODE(selected(fd), 0);
	int levels = set_of(fd, EPOLLIN | EPOLLOUT), edge = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLET);
	int alone = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE), nested = set_of(levels, EPOLLIN);
	CODE(edges(levels) | edges(edge) | edges(alone) | edges(nested), 0);
	for (int round = 0; round < 3; round++) {
		make();
		CODE(polled(fd), POLLIN);
		CODE(selected(fd), 1);
		CODE(edges(edge), EPOLLIN);
		CODE(edges(edge), 0);
		/* Another one is another edge, though the first was not taken. */
		make();
		CODE(edges(edge), EPOLLIN);
		CODE(edges(edge), 0);
		CODE(edges(levels), EPOLLIN);
		CODE(edges(levels), EPOLLIN);
		CODE(edges(alone), EPOLLIN);
		CODE(edges(nested), EPOLLIN);
		int status;
		pid_t child = fork();
		if (!child)
			_exit(polled(fd) != POLLIN);
		CODE(waitpid(child, &status, 0) == child && status == 0, 1);
		CODE(take(), 0);
		CODE(polled(fd), POLLIN);
		CODE(take(), 0);
		CODE(polled(fd), 0);
		CODE(edges(levels) | edges(edge) | edges(alone) | edges(nested), 0);
		/* Where it does not wait there is none, and where it does one comes. */
		CODE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
		CODE(take(), EAGAIN);
		make();
		CODE(take(), 0);
		CODE(take(), EAGAIN);
		CODE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK), 0);
		pthread_t thread;
		taker = 0;
		CODE(pthread_create(&thread, NULL, takes, take), 0);
		while (!taker || !sleeps(taker))
			sched_yield();
		make();
		CODE(pthread_join(thread, NULL), 0);
		CODE(edges(levels) | edges(alone) | edges(nested), 0);
		/* What came and went is an edge too, and nothing is there by now. */
		edges(edge);
	}
	CODE(close(levels) | close(edge) | close(alone) | close(nested), 0);
}

/* Events that nobody takes for long are there all the same, each once. */
static void many(int fd, void (*make)(void), int (*take)(void))
{
	for (int event = 0; event < MANY; event++)
		make();
	for (int event = 0; event < MANY; event++) {
		CODE(polled(fd), POLLIN);
		CODE(take(), 0);
	}
	CODE(polled(fd), 0);
}

/* A call without room for the event leaves it, and room may be anywhere. */
static void room(void)
{
	struct ibv_cq *of;
	void *context;
	char bytes[64];
	completes();
	CODE(ibv_get_cq_event(channel, NULL, &context) ? errno : 0, EINVAL);
	CODE(ibv_get_cq_event(channel, &of, NULL) ? errno : 0, EINVAL);
	CODE(polled(channel->fd), POLLIN);
	CODE(ibv_get_cq_event(channel, (void *)(bytes + 1), (void *)(bytes + 11)), 0);
	memcpy(&of, bytes + 1, sizeof of);
	memcpy(&context, bytes + 11, sizeof context);
	CODE(of == cq && context == &cq, 1);
	ibv_ack_cq_events(of, 1);
	tells();
	CODE(ibv_get_async_event(ctx, NULL) ? errno : 0, EINVAL);
	CODE(polled(ctx->async_fd), POLLIN);
	struct ibv_async_event event, *anywhere = (void *)(bytes + 3);
	CODE(ibv_get_async_event(ctx, anywhere), 0);
	memcpy(&event, anywhere, sizeof event);
	CODE(event.element.qp == last[taken_last++ % 8], 1);
	ibv_ack_async_event(anywhere);
	CODE(ibv_destroy_qp(event.element.qp), 0);
}

/* A program that reads a completion channel's descriptor itself has the event, as from the kernel: the CQ, once. */
static void reads(void)
{
	struct ibv_cq *first = cq, *of;
	void *context;
	uint64_t taken[4];
	int edge = set_of(channel->fd, EPOLLIN | EPOLLET);
	for (int round = 0; round < 300; round++) {
		completes();
		CODE(edges(edge), EPOLLIN);
		CODE(polled(channel->fd), POLLIN);
		CODE(read(channel->fd, taken, 8), 8);
		CODE(taken[0] == (uintptr_t)first, 1);
		CODE(polled(channel->fd) | edges(edge), 0);
		/* Whoever asks for the next has that. */
		if (round % 2) {
			completes();
			completes();
			CODE(edges(edge), EPOLLIN);
			CODE(take_completion() | take_completion(), 0);
			CODE(polled(channel->fd), 0);
		}
		ibv_ack_cq_events(first, 1);
	}
	/* What was read of one keeps no event of another back, also where the first goes. */
	MADE(cq, ibv_create_cq(ctx, 1, &cq, channel, 0));
	completes();
	CODE(polled(channel->fd), POLLIN);
	CODE(ibv_destroy_cq(first), 0);
	CODE(polled(channel->fd), POLLIN);
	CODE(take_completion(), 0);
	CODE(polled(channel->fd), 0);
	for (int round = 0; round < 3; round++) {
		completes();
		CODE(polled(channel->fd), POLLIN);
		CODE(ibv_get_cq_event(channel, &of, &context), 0);
		CODE(of == cq, 1);
		ibv_ack_cq_events(of, 1);
	}
	CODE(polled(channel->fd), 0);
	CODE(close(edge), 0);
}

int main(int count, char **words)
{
	struct ibv_device **list;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(channel, ibv_create_comp_channel(ctx));
	MADE(cq, ibv_create_cq(ctx, 16, &cq, channel, 0));
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
	MADE(srq, ibv_create_srq(pd, &init));
	MADE(events, rdma_create_event_channel());
	if (count > 1 && !strcmp(words[1], "completions")) {
		descriptor(channel->fd, completes, take_completion);
		many(channel->fd, completes, take_completion);
	} else if (count > 1 && !strcmp(words[1], "asynchronous"))
		descriptor(ctx->async_fd, tells, take_async);
	else if (count > 1 && !strcmp(words[1], "connections")) {
		descriptor(events->fd, resolves, take_resolved);
		many(events->fd, resolves, take_resolved);
	} else if (count > 1 && !strcmp(words[1], "reads"))
		reads();
	else
		room();
	CODE(ibv_destroy_cq(cq) | ibv_destroy_comp_channel(channel), 0);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
