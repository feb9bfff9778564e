/* A GID table whose entry at the index of the command line is the device's, and those before it are empty. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>

#include "../abuse/check.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int own;

static int queue_pair_to(int index, union ibv_gid dgid, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			.grh = { .dgid = dgid, .sgid_index = index, .hop_limit = 64 } } };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static struct ibv_ah *handle(int index, union ibv_gid dgid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
		.grh = { .dgid = dgid, .sgid_index = index, .hop_limit = 64 } };
	return ibv_create_ah(pd, &attr);
}

static void ask(union ibv_gid *found)
{
	static const union ibv_gid empty;
	struct ibv_gid_entry entry, table[32];
	struct ibv_port_attr port;
	CODE(ibv_query_port(ctx, 1, &port), 0);
	CODE(port.gid_tbl_len, own + 1);
	for (int index = 0; index < own; index++) {
		CODE(ibv_query_gid(ctx, 1, index, found), 0);
		CODE(memcmp(found, &empty, sizeof(empty)), 0);
		CODE(ibv_query_gid_ex(ctx, 1, index, &entry, 0), ENODATA);
	}
	CODE(ibv_query_gid(ctx, 1, own, found), 0);
	CODE(!memcmp(found, &empty, sizeof(empty)), 0);
	CODE(ibv_query_gid_ex(ctx, 1, own, &entry, 0), 0);
	CODE(memcmp(found, &entry.gid, sizeof(entry.gid)), 0);
	CODE(entry.gid_index, own);
	CODE(ibv_query_gid(ctx, 1, own + 1, found), -1);
	CODE(ibv_query_gid_ex(ctx, 1, own + 1, &entry, 0), EINVAL);
	CODE(ibv_query_gid_table(ctx, table, 32, 0), 1);
	CODE(table[0].gid_index, own);
	*found = table[0].gid;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	union ibv_gid gid;
	struct ibv_ah *ah;
	struct ibv_qp *qp;

	own = argc > 1 ? atoi(argv[1]) : 0;
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	ask(&gid);
	MADE(init.send_cq, ibv_create_cq(ctx, 2, NULL, NULL, 0));
	init.recv_cq = init.send_cq;
	MADE(qp, ibv_create_qp(pd, &init));
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	for (int index = 0; index < own + 3; index++) {
		if (index == own)
			continue;
		NONE(handle(index, gid), EINVAL);
		CODE(queue_pair_to(index, gid, qp), EINVAL);
	}
	MADE(ah, handle(own, gid));
	CODE(queue_pair_to(own, gid, qp), 0);
	CODE(ibv_query_qp(qp, &attr, IBV_QP_AV, &init), 0);
	CODE(attr.ah_attr.grh.sgid_index, own);
	CODE(ibv_destroy_ah(ah), 0);
	printf("%d checks, %d failures\n", checks, failures);
	return !!failures;
}
