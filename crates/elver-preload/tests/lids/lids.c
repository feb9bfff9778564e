/* Two processes that know each other by LIDs and numbers alone; on Ethernet, that a LID leads nowhere. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../abuse/check.h"

enum { RC, UD, KINDS };
enum { QKEY = 0x11111111, GRH = 40, BYTES = 256 };

struct end {
	uint32_t qpn[KINDS];
	uint16_t lid;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qps[KINDS];
static struct ibv_mr *mr;
static unsigned char memory[4 * BYTES];

static void open_device(struct end *own, int link_layer)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_gid_entry entry;
	struct ibv_port_attr port;
	int infiniband = link_layer == IBV_LINK_LAYER_INFINIBAND;
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(cq, ibv_create_cq(ctx, 16, NULL, NULL, 0));
	MADE(mr, ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	CODE(ibv_query_port(ctx, 1, &port), 0);
	CODE(port.link_layer, link_layer);
	CODE(!!port.lid, infiniband);
	CODE(port.flags & IBV_QPF_GRH_REQUIRED, !infiniband);
	CODE(ibv_query_gid_ex(ctx, 1, 0, &entry, 0), 0);
	CODE(entry.gid_type, infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2);
	own->lid = port.lid;
	for (int kind = 0; kind < KINDS; kind++) {
		struct ibv_qp_init_attr init = { .qp_type = kind == RC ? IBV_QPT_RC : IBV_QPT_UD, .send_cq = cq,
			.recv_cq = cq, .cap = { 4, 4, 1, 1, 0 } };
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		MADE(qps[kind], ibv_create_qp(pd, &init));
		CODE(ibv_modify_qp(qps[kind], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			(kind == RC ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)), 0);
		own->qpn[kind] = qps[kind]->qp_num;
	}
}

static int connect_to(uint16_t lid, uint32_t qpn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn,
		.min_rnr_timer = 1, .ah_attr = { .dlid = lid, .port_num = 1 } };
	return ibv_modify_qp(qps[RC], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static struct ibv_ah *handle(uint16_t lid)
{
	struct ibv_ah_attr attr = { .dlid = lid, .port_num = 1 };
	return ibv_create_ah(pd, &attr);
}

static void nowhere(uint16_t lid)
{
	NONE(handle(lid), EINVAL);
	CODE(connect_to(lid, 1), EINVAL);
}

static void ready(const struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7 };
	struct ibv_qp_init_attr init;
	CODE(connect_to(peer->lid, peer->qpn[RC]), 0);
	CODE(ibv_modify_qp(qps[RC], &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0);
	CODE(ibv_query_qp(qps[RC], &attr, IBV_QP_AV, &init), 0);
	CODE(attr.ah_attr.dlid, peer->lid);
	attr.qp_state = IBV_QPS_RTR;
	CODE(ibv_modify_qp(qps[UD], &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qps[UD], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static void receive(int kind)
{
	struct ibv_sge sge = { .addr = (uintptr_t)(memory + kind * BYTES), .length = BYTES, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CODE(ibv_post_recv(qps[kind], &wr, &bad), 0);
}

static void post(int kind, unsigned char byte, struct ibv_ah *ah, uint32_t qpn)
{
	unsigned char *from = memory + (2 + kind) * BYTES;
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = BYTES - GRH, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY } }, *bad;
	memset(from, byte, BYTES - GRH);
	CODE(ibv_post_send(qps[kind], &wr, &bad), 0);
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	CODE(wc.status, IBV_WC_SUCCESS);
	return wc;
}

/* A receive's completion, after or before that of what was sent. */
static struct ibv_wc received(int kind, const struct end *peer, unsigned char byte)
{
	struct ibv_wc got = { 0 };
	for (int count = 0; count < 2; count++) {
		struct ibv_wc wc = next();
		if (wc.opcode == IBV_WC_RECV)
			got = wc;
	}
	CODE(got.slid, peer->lid);
	CODE(memory[kind * BYTES + (kind == UD ? GRH : 0)], byte);
	return got;
}

static void tell(int socket, const void *from, void *to, size_t size)
{
	CODE(send(socket, from, size, 0), size);
	CODE(recv(socket, to, size, MSG_WAITALL), size);
}

static void talk(int socket, int is_first)
{
	struct end own, peer;
	struct ibv_ah_attr back;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	open_device(&own, IBV_LINK_LAYER_INFINIBAND);
	tell(socket, &own, &peer, sizeof own);
	CODE(own.lid == peer.lid, 0);
	nowhere(0);
	nowhere(0xc000);
	nowhere(0xffff);
	ready(&peer);
	receive(RC);
	receive(UD);
	tell(socket, &own, &peer, sizeof own);
	post(RC, 1 + is_first, NULL, 0);
	received(RC, &peer, 2 - is_first);
	if (is_first) {
		MADE(ah, handle(peer.lid));
		post(UD, 7, ah, peer.qpn[UD]);
		received(UD, &peer, 9);
	} else {
		wc = next();
		CODE(wc.slid, peer.lid);
		CODE(memory[BYTES + GRH], 7);
		CODE(ibv_init_ah_from_wc(ctx, 1, &wc, (void *)(memory + BYTES), &back), 0);
		CODE(back.dlid, peer.lid);
		MADE(ah, ibv_create_ah_from_wc(pd, &wc, (void *)(memory + BYTES), 1));
		post(UD, 9, ah, wc.src_qp);
		next();
	}
	CODE(ibv_destroy_ah(ah), 0);
	/* Neither goes before both have all. */
	tell(socket, &own, &peer, sizeof own);
}

int main(int argc, char **argv)
{
	int sockets[2], ended;
	struct end own;
	(void)argv;
	if (argc > 1) {
		open_device(&own, IBV_LINK_LAYER_ETHERNET);
		nowhere(0);
		nowhere(1);
		printf("%d checks, %d failures\n", checks, failures);
		return !!failures;
	}
	CODE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	if (!fork()) {
		close(sockets[1]);
		talk(sockets[0], 0);
		fflush(stdout);
		_exit(!!failures);
	}
	close(sockets[0]);
	talk(sockets[1], 1);
	wait(&ended);
	CODE(ended, 0);
	printf("%d checks, %d failures\n", checks, failures);
	return !!failures;
}
