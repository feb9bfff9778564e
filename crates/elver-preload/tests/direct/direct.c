/* Two processes of one host: an initiator, and a target that it reads and writes. Each case says what it
 * saw, and exits with 0 when that was right. Whether data is moved by who posts is seen by this: it is there,
 * and complete, when ibv_post_send returns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/draw.h"

enum { SIZE = 1 << 20, DEPTH = 64 };
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static int line;
static const char *who = "initiator";
static pid_t other;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

#define MUST(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s, line %d: not so: %s\n", who, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void tell(const void *what, size_t size)
{
	MUST(send(line, what, size, MSG_NOSIGNAL) == (ssize_t)size);
}

static void hear(void *what, size_t size)
{
	MUST(recv(line, what, size, MSG_WAITALL) == (ssize_t)size);
}

/* Both processes are here. */
static void meet(void)
{
	char word = 'x';
	tell(&word, 1);
	hear(&word, 1);
}

struct end {
	union ibv_gid gid;
	uint32_t qpn;
};

struct key {
	uint64_t addr;
	uint32_t rkey;
};

static void open_device(void)
{
	struct ibv_device **all = ibv_get_device_list(NULL);
	MUST(all && all[0]);
	MUST((ctx = ibv_open_device(all[0])));
	MUST((pd = ibv_alloc_pd(ctx)));
	MUST((cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0)));
}

static void to_init(int access)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 4, 4, 64 } };
	MUST((qp = ibv_create_qp(pd, &init)));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void to_rts(void)
{
	/* 67 ms, seven times: others may have the processors. */
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	MUST(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
		| IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void to_rtr(int access)
{
	to_init(access);
	struct end own = { .qpn = qp->qp_num }, peer;
	MUST(!ibv_query_gid(ctx, 1, 0, &own.gid));
	tell(&own, sizeof own);
	hear(&peer, sizeof peer);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 1 } } };
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
		| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void connect_qp(int access)
{
	to_rtr(access);
	to_rts();
	meet();
}

static struct ibv_mr *region(void *start, size_t size, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, start, size, access);
	MUST(mr);
	return mr;
}

static unsigned char *memory(void)
{
	unsigned char *start = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(start != MAP_FAILED);
	return start;
}

static struct ibv_wc await(void)
{
	struct ibv_wc wc;
	double end = seconds() + 30;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		MUST(seconds() < end);
	MUST(found == 1);
	return wc;
}

static int post(enum ibv_wr_opcode opcode, struct ibv_mr *mr, uint64_t offset, uint32_t length, struct key to)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr + offset, length, mr->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1, .wr.rdma = { to.addr, to.rkey } };
	return ibv_post_send(qp, &wr, &bad);
}

static void receive(struct ibv_mr *mr, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, length, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	MUST(!ibv_post_recv(qp, &wr, &bad));
}

static enum ibv_qp_state state(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	MUST(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* Whether READs are complete when they were posted: all of them, not one for which the peer was quick. */
static int moves_itself(struct ibv_mr *mr, struct key to)
{
	int at_once = 0, tries = 50;
	for (int n = 0; n < tries; n++) {
		struct ibv_wc wc;
		MUST(!post(IBV_WR_RDMA_READ, mr, SIZE - 8, 8, to));
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			at_once++;
		else
			wc = await();
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 8);
	}
	return at_once == tries;
}

/* Memory that others reach while its owner does nothing. */
static void offer(void)
{
	unsigned char *start = memory();
	for (int at = 0; at < SIZE; at++)
		start[at] = at * 7;
	struct ibv_mr *mr = region(start, SIZE, RIGHTS);
	struct key key = { (uintptr_t)start, mr->rkey };
	tell(&key, sizeof key);
	meet();
}

static void lie_still(int access)
{
	connect_qp(access);
	offer();
}

static struct key find(void)
{
	struct key key;
	hear(&key, sizeof key);
	return key;
}

/* Random READs and WRITEs, in lists, gathered from several pieces or inline, against a copy. */
static void integrity(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	unsigned char *model = malloc(SIZE), *own = memory(), *expected = malloc(SIZE);
	for (int at = 0; at < SIZE; at++)
		model[at] = at * 7;
	struct ibv_mr *mr = region(own, SIZE, RIGHTS);
	MUST(moves_itself(mr, to) == direct);
	for (int round = 0; round < 400; round++) {
		struct ibv_send_wr wrs[16], *bad;
		struct ibv_sge sges[16][3];
		int count = 1 + draw() % 16, signalled = 0;
		size_t used = 0;
		for (int at = 0; at < SIZE; at += 8)
			*(uint64_t *)(own + at) = draw();
		memcpy(expected, own, SIZE);
		for (int n = 0; n < count; n++) {
			uint32_t most = draw() % 4 ? 300 : SIZE / 16, length = 1 + draw() % most;
			int inlined = length <= 64 && draw() % 3 == 0, reads = !inlined && draw() % 2;
			uint64_t there = draw() % (SIZE - length + 1);
			int pieces = 1 + draw() % 3;
			if (length < 3)
				pieces = 1;
			uint32_t cut = length / pieces, rest = length;
			for (int piece = 0; piece < pieces; piece++) {
				uint32_t part = piece == pieces - 1 ? rest : cut;
				sges[n][piece] = (struct ibv_sge){ (uintptr_t)own + used, part,
					inlined ? 0 : mr->lkey };
				if (reads)
					memcpy(expected + used, model + there + (length - rest), part);
				else
					memcpy(model + there + (length - rest), own + used, part);
				rest -= part;
				used += part;
			}
			int signals = n == count - 1 || draw() % 2;
			signalled += signals;
			wrs[n] = (struct ibv_send_wr){ .wr_id = n, .next = n == count - 1 ? NULL : &wrs[n + 1],
				.sg_list = sges[n], .num_sge = pieces,
				.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				.send_flags = (signals ? IBV_SEND_SIGNALED : 0) | (inlined ? IBV_SEND_INLINE : 0)
					/* A READ may read what a WRITE behind it has written. */
					| (reads ? 0 : IBV_SEND_FENCE),
				.wr.rdma = { to.addr + there, to.rkey } };
		}
		MUST(!ibv_post_send(qp, wrs, &bad));
		if (direct)
			MUST(!memcmp(own, expected, used));
		uint64_t before = 0;
		for (int n = 0; n < signalled; n++) {
			struct ibv_wc wc = await();
			MUST(wc.status == IBV_WC_SUCCESS && (n == 0 || wc.wr_id > before));
			before = wc.wr_id;
		}
		MUST(!memcmp(own, expected, used));
	}
	for (int at = 0; at < SIZE; at += SIZE / 4) {
		MUST(!post(IBV_WR_RDMA_READ, mr, at, SIZE / 4, (struct key){ to.addr + at, to.rkey }));
		MUST(await().status == IBV_WC_SUCCESS);
	}
	MUST(!memcmp(own, model, SIZE));
	meet();
}

/* What was written before a message was sent is there when that arrives. */
static void order(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	unsigned char *own = memory();
	struct ibv_mr *mr = region(own, SIZE, RIGHTS);
	MUST(moves_itself(mr, to) == direct);
	for (int round = 1; round <= 300; round++) {
		uint32_t length = 8 + draw() % 9000;
		memset(own, round, length);
		MUST(!post(IBV_WR_RDMA_WRITE, mr, 0, length, to));
		MUST(!post(IBV_WR_SEND, mr, 0, 4, to));
		/* Behind the message, whichever way that takes. */
		memset(own + SIZE / 2, round + 1, 8);
		MUST(!post(IBV_WR_RDMA_WRITE, mr, SIZE / 2, 8, (struct key){ to.addr + SIZE / 2, to.rkey }));
		for (int n = 0; n < 3; n++) {
			struct ibv_wc wc = await();
			MUST(wc.status == IBV_WC_SUCCESS);
			MUST(wc.opcode == (n == 1 ? IBV_WC_SEND : IBV_WC_RDMA_WRITE));
		}
		tell(&length, sizeof length);
		hear(&length, sizeof length);
	}
}

static void order_target(void)
{
	connect_qp(RIGHTS);
	unsigned char *start = memory();
	struct ibv_mr *mr = region(start, SIZE, RIGHTS);
	/* Receives go elsewhere. */
	struct ibv_mr *inbox = region(memory(), 64, IBV_ACCESS_LOCAL_WRITE);
	struct key key = { (uintptr_t)start, mr->rkey };
	receive(inbox, 64);
	tell(&key, sizeof key);
	for (int round = 1; round <= 300; round++) {
		struct ibv_wc wc = await();
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 4);
		unsigned char first = start[0];
		uint32_t length;
		receive(inbox, 64);
		hear(&length, sizeof length);
		MUST(first == (unsigned char)round);
		for (uint32_t at = 0; at < length; at++)
			MUST(start[at] == (unsigned char)round);
		MUST(start[SIZE / 2] == (unsigned char)(round + 1));
		tell(&length, sizeof length);
	}
}

/* A target may stay in RTR: it is told of the first packet, and what follows goes directly. */
static void in_rtr(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	double end = seconds() + 60;
	while (!moves_itself(mr, to) && direct)
		MUST(seconds() < end);
	meet();
	meet();
	MUST(moves_itself(mr, to) == direct);
	meet();
}

static void in_rtr_target(void)
{
	to_rtr(RIGHTS);
	meet();
	offer();
	struct ibv_async_event event;
	MUST(!ibv_get_async_event(ctx, &event));
	MUST(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == qp);
	ibv_ack_async_event(&event);
	MUST(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	MUST(ibv_get_async_event(ctx, &event) == -1);
	to_rts();
	meet();
	meet();
}

/* A long WRITE waits for a message before it, where that arrives soon, and is not sent behind it. Both are posted by one
 * call, so that nobody sees to the message before. */
static void behind(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	struct ibv_sge few = { (uintptr_t)mr->addr, 4, mr->lkey }, all = { (uintptr_t)mr->addr, SIZE, mr->lkey };
	struct ibv_send_wr *bad, writes = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &all,
		.num_sge = 1, .wr.rdma = { to.addr, to.rkey } };
	struct ibv_send_wr sends = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &few,
		.num_sge = 1, .next = &writes };
	double end = seconds() + 60;
	char again = 1;
	while (again) {
		struct ibv_wc wcs[2];
		MUST(!ibv_post_send(qp, &sends, &bad));
		int found = ibv_poll_cq(cq, 2, wcs);
		MUST(found >= 0 && seconds() < end);
		for (int n = 0; n < 2; n++) {
			struct ibv_wc wc = n < found ? wcs[n] : await();
			MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == (n ? IBV_WC_RDMA_WRITE : IBV_WC_SEND));
		}
		again = direct && found < 2;
		tell(&again, 1);
		hear(&again, 1);
	}
}

static void behind_target(void)
{
	connect_qp(RIGHTS);
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	struct ibv_mr *inbox = region(memory(), 64, IBV_ACCESS_LOCAL_WRITE);
	struct key key = { (uintptr_t)mr->addr, mr->rkey };
	receive(inbox, 64);
	tell(&key, sizeof key);
	char again = 1;
	while (again) {
		MUST(await().opcode == IBV_WC_RECV);
		receive(inbox, 64);
		hear(&again, 1);
		tell(&again, 1);
	}
}

enum { MESSAGES = 600 };

/* Messages of random lengths, some of them gathered by packets that hold a part each. */
static void messages(int direct)
{
	uint64_t sequence = seed;
	connect_qp(RIGHTS);
	tell(&sequence, sizeof sequence);
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	(void)direct;
	for (int n = 0; n < MESSAGES; n++) {
		uint32_t length = 1 + draw() % (n % 8 ? 200 : 60000);
		memset(mr->addr, n, length);
		MUST(!post(IBV_WR_SEND, mr, 0, length, (struct key){ 0 }));
		struct ibv_wc wc = await();
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
	}
	meet();
}

/* It polls now, and sleeps until it is told then; and does something else at times. */
static void messages_target(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	MUST(channel && (cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, channel, 0)));
	struct ibv_mr *mr = region(memory(), SIZE, IBV_ACCESS_LOCAL_WRITE);
	connect_qp(RIGHTS);
	hear(&seed, sizeof seed);
	for (int n = 0; n < MESSAGES; n++) {
		struct ibv_wc wc;
		int sleeps = n / 50 % 2;
		if (n % 100 == 0)
			usleep(2000);
		receive(mr, 60000);
		if (sleeps) {
			struct ibv_cq *told;
			void *context;
			MUST(!ibv_req_notify_cq(cq, 0));
			int found = ibv_poll_cq(cq, 1, &wc);
			if (!found) {
				MUST(!ibv_get_cq_event(channel, &told, &context) && told == cq);
				ibv_ack_cq_events(cq, 1);
				wc = await();
			}
		} else {
			wc = await();
		}
		uint32_t length = 1 + draw() % (n % 8 ? 200 : 60000);
		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == length);
		unsigned char *start = mr->addr;
		for (uint32_t at = 0; at < length; at++)
			MUST(start[at] == (unsigned char)n);
	}
	meet();
}

/* A WR that the target refuses: both QPs are told as ever. */
static void refused(enum ibv_wr_opcode opcode, struct ibv_mr *mr, struct key to, enum ibv_wc_status status)
{
	MUST(!post(opcode, mr, 0, 64, to));
	struct ibv_wc wc = await();
	MUST(wc.status == status);
	MUST(state() == IBV_QPS_ERR);
	meet();
	meet();
	MUST(!ibv_destroy_qp(qp));
}

/* Of the ways in which a request is wrong. */
enum { WRONG_KEY, BEYOND, BEFORE, GONE, NO_RIGHT, NO_RIGHT_OF_QP, OTHER_PD, SHRUNK, WAYS };

static void errors(int direct)
{
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	for (int way = 0; way < WAYS; way++) {
		connect_qp(RIGHTS);
		struct key to = find();
		if (way == WRONG_KEY || way == GONE || way == SHRUNK || way == BEYOND || way == BEFORE)
			MUST(moves_itself(mr, to) == direct);
		meet();
		meet();
		if (way == WRONG_KEY)
			to.rkey ^= 1;
		if (way == BEYOND || way == SHRUNK)
			to.addr += SIZE - 63;
		if (way == BEFORE)
			to.addr -= 1;
		enum ibv_wc_status status = way == NO_RIGHT_OF_QP ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR;
		refused(way % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, mr, to, status);
	}
}

static void errors_target(void)
{
	struct ibv_pd *second = ibv_alloc_pd(ctx);
	for (int way = 0; way < WAYS; way++) {
		int reads = way % 2, right = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
		connect_qp(way == NO_RIGHT_OF_QP ? RIGHTS & ~right : RIGHTS);
		unsigned char *start = memory();
		struct ibv_mr *mr = ibv_reg_mr(way == OTHER_PD ? second : pd, start, SIZE,
			way == NO_RIGHT ? RIGHTS & ~right : RIGHTS);
		struct key key = { (uintptr_t)start, mr->rkey };
		tell(&key, sizeof key);
		meet();
		if (way == GONE) {
			MUST(!ibv_dereg_mr(mr));
			/* The place of the key is taken by others. */
			for (int n = 0; n < 8; n++)
				region(start, SIZE, RIGHTS);
		}
		if (way == SHRUNK)
			MUST(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, start, SIZE / 2, 0));
		meet();
		meet();
		MUST(state() == IBV_QPS_ERR);
		struct pollfd events = { ctx->async_fd, POLLIN, 0 };
		MUST(poll(&events, 1, 10000) == 1);
		struct ibv_async_event event;
		MUST(!ibv_get_async_event(ctx, &event));
		int told = way == NO_RIGHT_OF_QP ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR;
		MUST((int)event.event_type == told && event.element.qp == qp);
		ibv_ack_async_event(&event);
		for (int at = 0; at < SIZE; at++)
			MUST(start[at] == 0);
		meet();
		MUST(!ibv_destroy_qp(qp));
	}
}

/* The target is killed while it is written to. */
static void killed(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	MUST(moves_itself(mr, to) == direct);
	meet();
	double end = seconds() + 30, kill_at = seconds() + 0.02;
	struct ibv_wc wc = { 0 };
	int rounds = 0;
	while (wc.status == IBV_WC_SUCCESS) {
		if (kill_at && rounds && seconds() > kill_at) {
			kill(other, SIGKILL);
			kill_at = 0;
		}
		MUST(!post(IBV_WR_RDMA_WRITE, mr, 0, 1 + draw() % SIZE, to));
		wc = await();
		rounds++;
		MUST(seconds() < end);
	}
	MUST(wc.status == IBV_WC_RETRY_EXC_ERR);
	MUST(!kill_at && rounds > 1);
	MUST(state() == IBV_QPS_ERR);
	/* Nothing of the dead is in the way of what comes next. */
	MUST(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr));
}

/* The initiator is killed in the midst of its writes, and the target takes its memory back. */
static void kills_target(void)
{
	hear(&other, sizeof other);
	connect_qp(RIGHTS);
	unsigned char *start = memory();
	struct ibv_mr *mr = region(start, SIZE, RIGHTS);
	struct key key = { (uintptr_t)start, mr->rkey };
	tell(&key, sizeof key);
	char word;
	hear(&word, 1);
	volatile unsigned char *last = start;
	for (int n = 0; n < 100; n++) {
		unsigned char seen = *last;
		double end = seconds() + 10;
		while (*last == seen)
			MUST(seconds() < end);
	}
	kill(other, SIGKILL);
	double begun = seconds();
	MUST(!ibv_dereg_mr(mr));
	MUST(seconds() < begun + 4);
	MUST(munmap(start, SIZE) == 0);
	MUST(!ibv_destroy_qp(qp));
}

static void is_killed(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	MUST(moves_itself(mr, to) == direct);
	tell("x", 1);
	for (unsigned round = 1;; round++) {
		memset(mr->addr, round, 4096);
		MUST(!post(IBV_WR_RDMA_WRITE, mr, 0, round % 5 ? 4096 : SIZE, to));
		if (await().status != IBV_WC_SUCCESS)
			pause();
	}
}

enum { ROUNDS = 12 };

/* Memory that was deregistered is written no more, though the initiator does not cease. */
static void under_fire(int direct)
{
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	memset(mr->addr, 0xff, SIZE);
	for (int round = 0; round < ROUNDS; round++) {
		connect_qp(RIGHTS);
		struct key to = find();
		MUST(moves_itself(mr, to) == direct);
		meet();
		struct ibv_wc wc;
		int count = 0;
		do {
			MUST(!post(IBV_WR_RDMA_WRITE, mr, 0, draw() % 2 ? 64 : SIZE, to));
			wc = await();
			count++;
		} while (wc.status == IBV_WC_SUCCESS);
		/* Of one that is on its way in packets the rest is refused. */
		MUST(wc.status == IBV_WC_REM_ACCESS_ERR && (count > 1 || !direct));
		meet();
		MUST(!ibv_destroy_qp(qp));
	}
}

static void under_fire_target(void)
{
	unsigned char *start = memory();
	for (int round = 0; round < ROUNDS; round++) {
		connect_qp(RIGHTS);
		struct ibv_mr *mr = region(start, SIZE, RIGHTS);
		struct key key = { (uintptr_t)start, mr->rkey };
		tell(&key, sizeof key);
		meet();
		volatile unsigned char *first = start;
		double end = seconds() + 10;
		while (*first == 0)
			MUST(seconds() < end);
		MUST(!ibv_dereg_mr(mr));
		/* A write that is not over would be seen at its end, or in other memory that has its place at once. */
		unsigned char *end_of = start + SIZE - 4096;
		memset(end_of, 0, 4096);
		if (round % 3 == 0) {
			void *again = mmap(start, SIZE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			MUST(again == start);
		}
		/* The QP takes what comes, and refuses it. */
		meet();
		for (int at = round % 3 ? SIZE - 4096 : 0; at < SIZE; at++)
			MUST(start[at] == 0);
		memset(start, 0, SIZE);
		MUST(!ibv_destroy_qp(qp));
	}
}

/* Sockets to other processes that this one has. */
static int lines_to_peers(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++) {
		struct sockaddr_storage name;
		int type = 0;
		socklen_t length = sizeof type, size = sizeof name;
		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) && type == SOCK_SEQPACKET)
			count += !getpeername(fd, (struct sockaddr *)&name, &size);
	}
	return count;
}

/* What is asked whether data is moved by who posts. */
static void way(int direct)
{
	connect_qp(RIGHTS);
	struct key to = find();
	MUST(moves_itself(region(memory(), SIZE, RIGHTS), to) == direct);
	/* With it the peer would take this process for what it was when it is another program, while the child lives. */
	MUST(lines_to_peers() > 0 || !direct);
	pid_t child = fork();
	MUST(child >= 0);
	if (!child)
		_exit(lines_to_peers());
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	meet();
}

/* A QP that its owner stops is written no more when that has returned. */
static void stopped(int direct)
{
	struct ibv_mr *mr = region(memory(), SIZE, RIGHTS);
	memset(mr->addr, 0xff, SIZE);
	for (int round = 0; round < 3; round++) {
		connect_qp(RIGHTS);
		struct key to = find();
		MUST(moves_itself(mr, to) == direct);
		meet();
		struct ibv_wc wc;
		do {
			MUST(!post(IBV_WR_RDMA_WRITE, mr, 0, SIZE / 2, to));
			wc = await();
		} while (wc.status == IBV_WC_SUCCESS);
		MUST(wc.status == IBV_WC_RETRY_EXC_ERR);
		meet();
		MUST(!ibv_destroy_qp(qp));
	}
}

static void stopped_target(void)
{
	unsigned char *start = memory();
	struct ibv_mr *mr = region(start, SIZE, RIGHTS);
	for (int round = 0; round < 3; round++) {
		memset(start, 0, SIZE);
		connect_qp(RIGHTS);
		struct key key = { (uintptr_t)start, mr->rkey };
		tell(&key, sizeof key);
		meet();
		volatile unsigned char *first = start;
		double end = seconds() + 10;
		while (*first == 0)
			MUST(seconds() < end);
		struct ibv_qp_attr attr = { .qp_state = round ? IBV_QPS_ERR : IBV_QPS_RESET };
		if (round == 2)
			MUST(!ibv_destroy_qp(qp));
		else
			MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
		memset(start, 0, SIZE);
		meet();
		for (int at = 0; at < SIZE; at++)
			MUST(start[at] == 0);
		if (round < 2)
			MUST(!ibv_destroy_qp(qp));
	}
}

static void still(void)
{
	lie_still(RIGHTS);
}

/* Threads that post on one queue pair, and on one each, and as many that poll the one CQ of all. */
enum { THREADS = 4, POSTS = 800, AHEAD = 8, SLOT = 256, COUNTER = THREADS * POSTS * SLOT };
#define ALL_RIGHTS (RIGHTS | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_qp *common_qp, *own_qps[THREADS];
static struct ibv_mr *threads_mr;
static struct key threads_to;
static atomic_int done[THREADS * POSTS], ahead[THREADS], left;

static void *posts(void *argument)
{
	int thread = (intptr_t)argument;
	double end = seconds() + 120;
	for (int n = 0; n < POSTS; n++) {
		while (atomic_load(&ahead[thread]) == AHEAD) {
			MUST(seconds() < end);
			sched_yield();
		}
		atomic_fetch_add(&ahead[thread], 1);
		int id = thread * POSTS + n, adds = n % 16 == 7;
		struct ibv_sge sge = { (uintptr_t)threads_mr->addr + id * SLOT, adds ? 8 : 1 + (id * 7919) % SLOT,
			threads_mr->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = id, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
			.wr.rdma = { threads_to.addr + id * SLOT, threads_to.rkey } };
		if (adds) {
			wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
			wr.wr.atomic.remote_addr = threads_to.addr + COUNTER;
			wr.wr.atomic.compare_add = 1;
			wr.wr.atomic.rkey = threads_to.rkey;
		}
		MUST(!ibv_post_send(n % 2 ? common_qp : own_qps[thread], &wr, &bad));
	}
	return NULL;
}

static void *polls(void *argument)
{
	(void)argument;
	double end = seconds() + 120;
	while (atomic_load(&left) > 0) {
		struct ibv_wc wcs[4];
		int found = ibv_poll_cq(cq, 4, wcs);
		MUST(found >= 0 && seconds() < end);
		for (int n = 0; n < found; n++) {
			MUST(wcs[n].status == IBV_WC_SUCCESS && wcs[n].wr_id < THREADS * POSTS);
			MUST(atomic_fetch_add(&done[wcs[n].wr_id], 1) == 0);
			atomic_fetch_sub(&ahead[wcs[n].wr_id / POSTS], 1);
			atomic_fetch_sub(&left, 1);
		}
		if (!found)
			sched_yield();
	}
	return NULL;
}

static void threads(int direct)
{
	connect_qp(ALL_RIGHTS);
	common_qp = qp;
	for (int n = 0; n < THREADS; n++) {
		connect_qp(ALL_RIGHTS);
		own_qps[n] = qp;
	}
	threads_to = find();
	unsigned char *own = memory();
	for (int at = 0; at < SIZE; at += 8)
		*(uint64_t *)(own + at) = draw();
	threads_mr = region(own, SIZE, RIGHTS);
	(void)direct;
	atomic_store(&left, THREADS * POSTS);
	pthread_t all[2 * THREADS];
	for (int n = 0; n < 2 * THREADS; n++)
		MUST(!pthread_create(&all[n], NULL, n % 2 ? posts : polls, (void *)(intptr_t)(n / 2)));
	for (int n = 0; n < 2 * THREADS; n++)
		MUST(!pthread_join(all[n], NULL));
	unsigned char *there = memory();
	struct ibv_mr *seen = region(there, SIZE, RIGHTS);
	MUST(!post(IBV_WR_RDMA_READ, seen, 0, SIZE, threads_to));
	MUST(await().status == IBV_WC_SUCCESS);
	int added = 0;
	for (int id = 0; id < THREADS * POSTS; id++) {
		int adds = id % POSTS % 16 == 7, length = adds ? 0 : 1 + (id * 7919) % SLOT;
		added += adds;
		MUST(!memcmp(there + id * SLOT, own + id * SLOT, length));
		for (int at = id * SLOT + length; at < (id + 1) * SLOT; at++)
			MUST(there[at] == (unsigned char)(at * 7));
	}
	uint64_t before = 0;
	for (int at = 7; at >= 0; at--)
		before = before << 8 | (unsigned char)((COUNTER + at) * 7);
	MUST(*(uint64_t *)(there + COUNTER) == before + added);
	meet();
}

static void threads_target(void)
{
	for (int n = 0; n <= THREADS; n++)
		connect_qp(ALL_RIGHTS);
	unsigned char *start = memory();
	for (int at = 0; at < SIZE; at++)
		start[at] = at * 7;
	struct ibv_mr *mr = region(start, SIZE, ALL_RIGHTS);
	struct key key = { (uintptr_t)start, mr->rkey };
	tell(&key, sizeof key);
	meet();
}

/* Regions of the tests of long WRs, one of which is no whole number of anything, and how much a list of them moves. */
enum { LARGE = 32 << 20, ODD = (24 << 20) + 5, ANSWERED = 8, LISTS = 40 };

static struct {
	atomic_int list, seen, done;
} *shared;

static unsigned char *large(void)
{
	unsigned char *start = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(start != MAP_FAILED);
	return start;
}

/* A list of long WRITEs, and all that is to be seen of them; the status of the last. */
static enum ibv_wc_status writes_much(struct ibv_mr *mr, struct key to)
{
	struct ibv_send_wr wrs[DEPTH], *bad;
	struct ibv_sge all = { (uintptr_t)mr->addr, LARGE, mr->lkey };
	for (int n = 0; n < DEPTH; n++)
		wrs[n] = (struct ibv_send_wr){ .next = n == DEPTH - 1 ? NULL : &wrs[n + 1], .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED, .sg_list = &all, .num_sge = 1, .wr.rdma = { to.addr, to.rkey } };
	MUST(!ibv_post_send(qp, wrs, &bad));
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	for (int n = 0; n < DEPTH && status == IBV_WC_SUCCESS; n++)
		status = await().status;
	return status;
}

/* While this process moves 2 GiB by one call, its device answers the other one, whose requests come by packets; and what is moved
   by several calls is what was written. */
static void much(int direct)
{
	struct ibv_mr *mr = region(large(), LARGE, ALL_RIGHTS);
	connect_qp(RIGHTS);
	struct key to = find(), counter = { (uintptr_t)mr->addr, mr->rkey };
	struct ibv_qp *writes = qp;
	MUST(moves_itself(mr, to) == direct);
	connect_qp(ALL_RIGHTS);
	qp = writes;
	tell(&counter, sizeof counter);
	for (int n = 0; n < LISTS && !atomic_load(&shared->seen); n++) {
		atomic_fetch_add(&shared->list, 1);
		MUST(writes_much(mr, to) == IBV_WC_SUCCESS);
		atomic_fetch_add(&shared->list, 1);
	}
	MUST(atomic_load(&shared->seen));
	atomic_store(&shared->done, 1);
	meet();
	unsigned char *own = mr->addr, *model = malloc(ODD);
	for (int at = 0; at < ODD; at += 8)
		*(uint64_t *)(own + at) = draw();
	memcpy(model, own, ODD);
	uint32_t first = 1 + draw() % (ODD / 2), second = 1 + draw() % (ODD / 2 - 1);
	struct ibv_sge parts[] = { { (uintptr_t)own, first, mr->lkey }, { (uintptr_t)own + first, second, mr->lkey },
		{ (uintptr_t)own + first + second, ODD - first - second, mr->lkey } };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = parts,
		.num_sge = 3, .wr.rdma = { to.addr, to.rkey } };
	MUST(!ibv_post_send(qp, &wr, &bad) && await().status == IBV_WC_SUCCESS);
	memset(own, 0, ODD);
	for (int at = 0; at < ODD; at += SIZE) {
		uint32_t length = ODD - at < SIZE ? ODD - at : SIZE;
		MUST(!post(IBV_WR_RDMA_READ, mr, at, length, (struct key){ to.addr + at, to.rkey }));
		MUST(await().status == IBV_WC_SUCCESS);
	}
	MUST(!memcmp(own, model, ODD));
	memset(own, 0, ODD);
	wr.opcode = IBV_WR_RDMA_READ;
	MUST(!ibv_post_send(qp, &wr, &bad) && await().status == IBV_WC_SUCCESS);
	MUST(!memcmp(own, model, ODD));
	meet();
}

static void much_target(void)
{
	unsigned char *start = large();
	struct ibv_mr *mr = region(start, LARGE, RIGHTS), *old = region(memory(), SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct key key = { (uintptr_t)start, mr->rkey };
	connect_qp(RIGHTS);
	tell(&key, sizeof key);
	connect_qp(ALL_RIGHTS);
	struct key counter = find();
	int answered = 0, last = 0;
	while (!atomic_load(&shared->done)) {
		int list = atomic_load(&shared->list);
		struct ibv_sge sge = { (uintptr_t)old->addr, 8, old->lkey };
		struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
			.sg_list = &sge, .num_sge = 1,
			.wr.atomic = { .remote_addr = counter.addr, .compare_add = 1, .rkey = counter.rkey } };
		MUST(!ibv_post_send(qp, &wr, &bad) && await().status == IBV_WC_SUCCESS);
		answered = list % 2 && list == last ? answered + (atomic_load(&shared->list) == list) : 0;
		last = list;
		if (answered == ANSWERED)
			atomic_store(&shared->seen, 1);
	}
	meet();
	meet();
}

/* What the other one takes back in the midst of a list is written no more. */
static void much_is_taken_back(int direct)
{
	struct ibv_mr *mr = region(large(), LARGE, RIGHTS);
	memset(mr->addr, 0xff, LARGE);
	connect_qp(RIGHTS);
	struct key to = find();
	MUST(moves_itself(mr, to) == direct);
	enum ibv_wc_status status;
	while ((status = writes_much(mr, to)) == IBV_WC_SUCCESS)
		;
	MUST(status == IBV_WC_REM_ACCESS_ERR);
	meet();
}

static void takes_much_back(void)
{
	unsigned char *start = large();
	struct ibv_mr *mr = region(start, LARGE, RIGHTS);
	struct key key = { (uintptr_t)start, mr->rkey };
	connect_qp(RIGHTS);
	tell(&key, sizeof key);
	volatile unsigned char *first = start;
	double end = seconds() + 60;
	while (*first == 0)
		MUST(seconds() < end);
	MUST(!ibv_dereg_mr(mr));
	memset(start, 0, LARGE);
	meet();
	for (int at = 0; at < LARGE; at++)
		MUST(start[at] == 0);
}

static void dies(void)
{
	lie_still(RIGHTS);
	while (1)
		pause();
}

static const struct {
	const char *name;
	void (*initiator)(int direct);
	void (*target)(void);
	/* Which of them is killed. */
	int initiator_dies, target_dies;
} cases[] = {
	{ "integrity", integrity, still },
	{ "order", order, order_target },
	{ "messages", messages, messages_target },
	{ "in-rtr", in_rtr, in_rtr_target },
	{ "behind", behind, behind_target },
	{ "errors", errors, errors_target },
	{ "killed", killed, dies, .target_dies = 1 },
	{ "kills", is_killed, kills_target, .initiator_dies = 1 },
	{ "dereg", under_fire, under_fire_target },
	{ "stopped", stopped, stopped_target },
	{ "threads", threads, threads_target },
	{ "way", way, still },
	{ "much", much, much_target },
	{ "much-back", much_is_taken_back, takes_much_back },
};

/* Nobody, whose processes the system lets be debugged by each other, or does not. */
static void become_nobody(int may_be_reached)
{
	MUST(!setgid(65534) && !setuid(65534) && !prctl(PR_SET_DUMPABLE, may_be_reached));
}

/* direct CASE direct|packets SEED [other-user|other-pids|closed|open]: what the target is to the initiator */
int main(int argc, char **argv)
{
	MUST(argc >= 4);
	int direct = !strcmp(argv[2], "direct"), at = 0, lines[2];
	seed = strtoull(argv[3], NULL, 0);
	while (at < (int)(sizeof cases / sizeof *cases) && strcmp(cases[at].name, argv[1]))
		at++;
	MUST(at < (int)(sizeof cases / sizeof *cases));
	alarm(250);
	const char *how = argc > 4 ? argv[4] : "";
	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, lines));
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	pid_t first = getpid(), child = fork();
	MUST(child >= 0);
	line = lines[child == 0];
	close(lines[child != 0]);
	if (!child) {
		who = "target";
		other = first;
		alarm(250);
		if (*how && strcmp(how, "other-pids"))
			become_nobody(strcmp(how, "closed") != 0);
		if (!strcmp(how, "other-pids")) {
			/* Its children are there, and it cannot have threads any more. */
			MUST(!unshare(CLONE_NEWPID));
			pid_t inner = fork();
			MUST(inner >= 0);
			int status;
			if (inner) {
				MUST(waitpid(inner, &status, 0) == inner);
				return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
			}
			alarm(250);
		}
		open_device();
		cases[at].target();
		return 0;
	}
	other = child;
	if (!strcmp(how, "closed") || !strcmp(how, "open"))
		become_nobody(1);
	/* The one that is to be killed is not this one, which is waited for. */
	if (cases[at].initiator_dies) {
		pid_t inner = fork();
		MUST(inner >= 0);
		if (!inner) {
			pid_t own = getpid();
			tell(&own, sizeof own);
			open_device();
			cases[at].initiator(direct);
			return 1;
		}
		int status;
		MUST(waitpid(inner, &status, 0) == inner && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	} else {
		open_device();
		cases[at].initiator(direct);
	}
	int status;
	MUST(waitpid(child, &status, 0) == child);
	if (cases[at].target_dies)
		MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	printf("%s: right\n", argv[1]);
	return 0;
}
