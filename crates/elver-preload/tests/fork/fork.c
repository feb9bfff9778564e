/* A process forks with two QPs connected to each other: its child finds all of it dead, opens the device for itself, and
   ends in any way that it likes, while the parent goes on. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../abuse/check.h"

enum { LENGTH = 4096, CHILDREN = 4, ROUNDS = 50 };

/* All that one process has to send to itself. */
struct own {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_qp *qps[2];
	union ibv_gid gid;
	uint64_t guid;
	char *buffer;
};

static void connect_qp(struct own *own, struct ibv_qp *qp, uint32_t other)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = other;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = own->gid, .hop_limit = 64 } };
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

static void make(struct own *own)
{
	struct ibv_device **list;
	MADE(list, ibv_get_device_list(NULL));
	MADE(own->ctx, ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CODE(ibv_query_gid(own->ctx, 1, 0, &own->gid), 0);
	struct ibv_device_attr attr;
	CODE(ibv_query_device(own->ctx, &attr), 0);
	own->guid = attr.node_guid;
	MADE(own->pd, ibv_alloc_pd(own->ctx));
	MADE(own->channel, ibv_create_comp_channel(own->ctx));
	MADE(own->cq, ibv_create_cq(own->ctx, 32, NULL, own->channel, 0));
	MADE(own->buffer, aligned_alloc(4096, LENGTH));
	memset(own->buffer, 0, LENGTH);
	MADE(own->mr, ibv_reg_mr(own->pd, own->buffer, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = own->gid, .hop_limit = 64 } };
	MADE(own->ah, ibv_create_ah(own->pd, &to));
	struct ibv_qp_init_attr init = {
		.send_cq = own->cq, .recv_cq = own->cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 },
	};
	for (int at = 0; at < 2; at++)
		MADE(own->qps[at], ibv_create_qp(own->pd, &init));
	for (int at = 0; at < 2; at++)
		connect_qp(own, own->qps[at], own->qps[!at]->qp_num);
}

static struct ibv_send_wr written(struct own *own, struct ibv_sge *sge, char value)
{
	memset(own->buffer, value, LENGTH / 2);
	*sge = (struct ibv_sge){ (uintptr_t)own->buffer, LENGTH / 2, own->mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = sge, .num_sge = 1,
		.wr.rdma = { (uintptr_t)own->buffer + LENGTH / 2, own->mr->rkey },
	};
	return wr;
}

/* A WRITE from one QP to the other, of whose completion an event tells. */
static void write_once(struct own *own, char value)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = written(own, &sge, value), *bad;
	CODE(ibv_req_notify_cq(own->cq, 0), 0);
	CODE(ibv_post_send(own->qps[0], &wr, &bad), 0);
	struct ibv_cq *cq;
	void *context;
	CODE(ibv_get_cq_event(own->channel, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc wc;
	CODE(ibv_poll_cq(own->cq, 1, &wc), 1);
	CODE(wc.status, IBV_WC_SUCCESS);
	CODE(own->buffer[LENGTH - 1], value);
}

static void unmake(struct own *own)
{
	for (int at = 0; at < 2; at++)
		CODE(ibv_destroy_qp(own->qps[at]), 0);
	CODE(ibv_destroy_ah(own->ah), 0);
	CODE(ibv_dereg_mr(own->mr), 0);
	CODE(ibv_destroy_cq(own->cq), 0);
	CODE(ibv_destroy_comp_channel(own->channel), 0);
	CODE(ibv_dealloc_pd(own->pd), 0);
	CODE(ibv_close_device(own->ctx), 0);
}

/* What a child finds of its parent's. */
static void dead(struct own *own)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = written(own, &sge, 77), *bad = NULL;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *worse = NULL;
	struct ibv_wc wc;
	struct ibv_cq *cq;
	struct ibv_async_event event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init = { .send_cq = own->cq, .recv_cq = own->cq, .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = own->gid } };
	struct ibv_device_attr device;
	struct ibv_device_attr_ex more;
	struct ibv_td_init_attr thread = { 0 };
	struct ibv_alloc_dm_attr size = { .length = 64 };
	struct ibv_dm *dm;
	union ibv_gid gid;
	void *context;
	CODE(ibv_post_send(own->qps[0], &wr, &bad), ENODEV);
	CODE(bad == &wr, 1);
	CODE(ibv_post_recv(own->qps[0], &recv, &worse), ENODEV);
	CODE(worse == &recv, 1);
	CODE(ibv_poll_cq(own->cq, 1, &wc), -1);
	CODE(ibv_req_notify_cq(own->cq, 0), ENODEV);
	CODE(ibv_modify_qp(own->qps[0], &attr, IBV_QP_STATE), ENODEV);
	CODE(ibv_query_qp(own->qps[0], &attr, IBV_QP_STATE, &init), ENODEV);
	CODE(ibv_resize_cq(own->cq, 64), ENODEV);
	CODE(ibv_query_gid(own->ctx, 1, 0, &gid), -1);
	NONE(ibv_alloc_pd(own->ctx), ENODEV);
	NONE(ibv_create_comp_channel(own->ctx), ENODEV);
	NONE(ibv_alloc_td(own->ctx, &thread), ENODEV);
	NONE(ibv_create_cq(own->ctx, 1, NULL, NULL, 0), ENODEV);
	NONE(ibv_create_qp(own->pd, &init), ENODEV);
	NONE(ibv_create_srq(own->pd, &srq), ENODEV);
	NONE(ibv_reg_mr(own->pd, own->buffer, LENGTH, 0), ENODEV);
	NONE(ibv_create_ah(own->pd, &to), ENODEV);
	CODE(ibv_get_cq_event(own->channel, &cq, &context), -1);
	CODE(ibv_get_async_event(own->ctx, &event), -1);
	CODE(ibv_destroy_qp(own->qps[1]), ENODEV);
	CODE(ibv_destroy_ah(own->ah), ENODEV);
	CODE(ibv_dereg_mr(own->mr), ENODEV);
	CODE(ibv_destroy_cq(own->cq), ENODEV);
	CODE(ibv_destroy_comp_channel(own->channel), ENODEV);
	CODE(ibv_dealloc_pd(own->pd), ENODEV);
	CODE(ibv_close_device(own->ctx), ENODEV);
	/* What never changes is still told, and device memory is the child's own. */
	CODE(ibv_query_device(own->ctx, &device), 0);
	CODE(memcmp(&device.node_guid, &own->guid, sizeof(own->guid)), 0);
	CODE(ibv_query_device_ex(own->ctx, NULL, &more), 0);
	CODE(more.max_dm_size >= size.length, 1);
	MADE(dm, ibv_alloc_dm(own->ctx, &size));
	CODE(ibv_free_dm(dm), 0);
}

static int child(struct own *parents, int number)
{
	struct own own;
	dead(parents);
	make(&own);
	/* Another device than the parent's, of the same process's first. */
	CODE(memcmp(&own.gid, &parents->gid, sizeof(own.gid)) != 0, 1);
	CODE(ibv_get_device_guid(own.ctx->device) != 0, 1);
	dead(parents);
	for (int round = 0; round < ROUNDS; round++)
		write_once(&own, number);
	/* One forks again; one leaves all as it is. */
	if (number == 1) {
		pid_t pid = fork();
		if (pid == 0) {
			struct own grandchilds;
			dead(&own);
			make(&grandchilds);
			write_once(&grandchilds, 9);
			unmake(&grandchilds);
			_exit(failures > 0);
		}
		int status;
		CODE(waitpid(pid, &status, 0) == pid && status == 0, 1);
		write_once(&own, 8);
	}
	if (number != 2)
		unmake(&own);
	return failures > 0;
}

int main(void)
{
	struct own own;
	pid_t pids[CHILDREN];
	make(&own);
	write_once(&own, 1);
	for (int at = 0; at < CHILDREN; at++) {
		/* A completion that is outstanding is the parent's. */
		struct ibv_sge sge;
		struct ibv_send_wr wr = written(&own, &sge, at), *bad;
		CODE(ibv_post_send(own.qps[0], &wr, &bad), 0);
		pids[at] = fork();
		if (pids[at] == 0) {
			int failed = child(&own, at);
			if (failed)
				fflush(stdout);
			if (at == 3)
				_exit(failed);
			exit(failed);
		}
		struct ibv_wc wc;
		int found;
		while ((found = ibv_poll_cq(own.cq, 1, &wc)) == 0)
			;
		CODE(found, 1);
		CODE(wc.status, IBV_WC_SUCCESS);
		for (int round = 0; round < ROUNDS; round++)
			write_once(&own, 100 + at);
	}
	for (int at = 0; at < CHILDREN; at++) {
		int status;
		CODE(waitpid(pids[at], &status, 0) == pids[at] && status == 0, 1);
	}
	write_once(&own, 5);
	unmake(&own);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
