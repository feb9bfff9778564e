/* SENDs to somebody who never answers, posted while the device's thread sleeps: for a second, if nothing is due. They are
   repeated within milliseconds by whoever drives the device, and who waits for an event does not. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../abuse/check.h"

/* A round in which this process had to wait for the processor proves nothing; a thread that sleeps fails them all. */
enum { ROUNDS = 8, QUIET_MS = 20, SLEEPS_MS = 500 };
/* So many that the thread takes the program for one that polls; and so many that the wait is over long before the last. */
enum { FIRST_POSTS = 1024, POSTS = 200000, SPINS = 10000 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;

/* Makes a socket somebody who takes packets and says nothing: it is at the port of RoCEv2. */
static union ibv_gid silent(int fd)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, 0xff, 127, 207, getpid() >> 7, getpid() << 1 | 1 } };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(4791) };
	memcpy(&at.sin_addr, gid.raw + 12, 4);
	if (bind(fd, (struct sockaddr *)&at, sizeof(at))) {
		perror("bind");
		exit(2);
	}
	return gid;
}

/* Posts a SEND, which is given up after so many retries. */
static struct ibv_qp *send_to(union ibv_gid to, int retries)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 16 } };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = 7;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = to, .hop_limit = 64 } };
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 10;
	attr.retry_cnt = retries;
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC),
	     0);
	struct ibv_sge sge = { (uintptr_t)"hello", 5, 0 };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.sg_list = &sge, .num_sge = 1,
	}, *bad;
	CODE(ibv_post_send(qp, &wr, &bad), 0);
	return qp;
}

static atomic_int posted, enough;

/* Posts what nothing ever comes of, to a queue that is soon full, as fast as a program that does little else. */
static void *posts(void *qp)
{
	struct ibv_recv_wr wr = { 0 }, *bad;
	while (!enough && posted < POSTS) {
		ibv_post_recv(qp, &wr, &bad);
		posted++;
		for (volatile int at = 0; at < SPINS; at++)
			;
	}
	return NULL;
}

/* Waits for a SEND to be given up, while another thread posts and never polls: that drives nothing. */
static void beside_posts(union ibv_gid to)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 64, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp, *other;
	struct ibv_wc wc;
	pthread_t thread;
	MADE(other, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(other, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	CODE(pthread_create(&thread, NULL, posts, other), 0);
	while (posted < FIRST_POSTS)
		usleep(1000);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	qp = send_to(to, 7);
	struct pollfd comes = { channel->fd, POLLIN };
	int told = 0;
	while (!told && posted < POSTS)
		told = poll(&comes, 1, QUIET_MS);
	check("told while the other thread posts", told == 1 && posted < POSTS, 1);
	enough = 1;
	CODE(pthread_join(thread, NULL), 0);
	struct ibv_cq *of;
	void *context;
	CODE(ibv_get_cq_event(channel, &of, &context), 0);
	ibv_ack_cq_events(of, 1);
	CODE(ibv_poll_cq(cq, 1, &wc), 1);
	CODE(wc.status, IBV_WC_RETRY_EXC_ERR);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_qp(other), 0);
}

int main(void)
{
	struct ibv_device **list;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(channel, ibv_create_comp_channel(ctx));
	MADE(cq, ibv_create_cq(ctx, 8, NULL, channel, 0));
	int fd = socket(AF_INET, SOCK_DGRAM, 0), woken = 0;
	union ibv_gid to = silent(fd);
	/* When the thread fell asleep before the first is not known; it does at the end of each. */
	for (int round = 0; round <= ROUNDS && !woken; round++) {
		struct ibv_wc wc;
		struct pollfd comes = { channel->fd, POLLIN };
		char packet[256];
		CODE(ibv_req_notify_cq(cq, 0), 0);
		CODE(poll(&comes, 1, QUIET_MS), 0);
		struct ibv_qp *qp = send_to(to, 0);
		CODE(recv(fd, packet, sizeof(packet), 0) > 0, 1);
		comes.fd = fd;
		woken = poll(&comes, 1, SLEEPS_MS) == 1 && round > 0;
		struct ibv_cq *of;
		void *context;
		CODE(ibv_get_cq_event(channel, &of, &context), 0);
		ibv_ack_cq_events(of, 1);
		CODE(ibv_poll_cq(cq, 1, &wc), 1);
		CODE(wc.status, IBV_WC_RETRY_EXC_ERR);
		while (recv(fd, packet, sizeof(packet), MSG_DONTWAIT) > 0)
			;
		CODE(ibv_destroy_qp(qp), 0);
	}
	check("the thread woke before it had slept long enough", woken, 1);
	beside_posts(to);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
