/* DC by libmlx5's calls: what two ends of one process send each other, and misuse with the errno that it must have. */
#include <infiniband/mlx5dv.h>
#include <stdint.h>

#include "check.h"

enum { LENGTH = 8192, HALF = LENGTH / 2 };
static const uint64_t KEY = 0xffeeddcc;
static const uint64_t OPERATIONS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				   IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static union ibv_gid gid;
static char *buffer;

static struct ibv_qp_init_attr_ex base(uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.cap = { 16, 0, 1, 0, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = operations,
	};
	return init;
}

static struct mlx5dv_qp_init_attr of(enum mlx5dv_dc_type type)
{
	struct mlx5dv_qp_init_attr attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = type },
	};
	if (type == MLX5DV_DCTYPE_DCT)
		attr.dc_init_attr.dct_access_key = KEY;
	return attr;
}

static struct ibv_qp *initiator(int log_streams, int log_errored)
{
	struct ibv_qp_init_attr_ex init = base(OPERATIONS);
	struct mlx5dv_qp_init_attr attr = of(MLX5DV_DCTYPE_DCI);
	attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
	attr.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
	attr.dc_init_attr.dci_streams.log_num_concurent = log_streams;
	attr.dc_init_attr.dci_streams.log_num_errored = log_errored;
	struct ibv_qp *qp;
	MADE(qp, mlx5dv_create_qp(ctx, &init, &attr));
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), 0);
	to.qp_state = IBV_QPS_RTR;
	to.path_mtu = IBV_MTU_1024;
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PATH_MTU), 0);
	to.qp_state = IBV_QPS_RTS;
	to.timeout = 14;
	to.retry_cnt = to.rnr_retry = 7;
	to.max_rd_atomic = 1;
	int last = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
	CODE(ibv_modify_qp(qp, &to, last), EINVAL);
	CODE(ibv_modify_qp(qp, &to, last | IBV_QP_MAX_QP_RD_ATOMIC), 0);
	return qp;
}

static struct ibv_qp *target(void)
{
	struct ibv_qp_init_attr_ex init = base(0);
	struct mlx5dv_qp_init_attr attr = of(MLX5DV_DCTYPE_DCT);
	struct ibv_qp *qp;
	MADE(qp, mlx5dv_create_qp(ctx, &init, &attr));
	CODE(qp->qp_num, 0);
	struct ibv_qp_attr to = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } },
	};
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	to.qp_state = IBV_QPS_RTR;
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER), EINVAL);
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER), 0);
	CODE(qp->qp_num != 0, 1);
	to.qp_state = IBV_QPS_RTS;
	CODE(ibv_modify_qp(qp, &to, IBV_QP_STATE), EINVAL);
	return qp;
}

/* The next completion: its status. */
static int status_of(struct ibv_wc *wc)
{
	int found;
	while ((found = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	return found < 0 ? -1 : (int)wc->status;
}

static void devices(struct ibv_device *device)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	CODE(mlx5dv_is_supported(device), 1);
	CODE(mlx5dv_is_supported(NULL), 0);
	NONE(mlx5dv_open_device(device, &attr), EOPNOTSUPP);
	NONE(mlx5dv_open_device(NULL, NULL), EOPNOTSUPP);
	attr.flags = 0;
	attr.comp_mask = 1;
	NONE(mlx5dv_open_device(device, &attr), EINVAL);
	struct ibv_context *other;
	MADE(other, mlx5dv_open_device(device, NULL));
	CODE(ibv_close_device(other), 0);
	attr.comp_mask = 0;
	MADE(ctx, mlx5dv_open_device(device, &attr));
	struct mlx5dv_context found = { .comp_mask = UINT64_MAX, .num_lag_ports = 77 };
	CODE(mlx5dv_query_device(ctx, NULL), EINVAL);
	CODE(mlx5dv_query_device(ctx, &found), 0);
	CODE(found.comp_mask == (MLX5DV_CONTEXT_MASK_DC_ODP_CAPS | MLX5DV_CONTEXT_MASK_DCI_STREAMS), 1);
	CODE(found.num_lag_ports, 77);
	CODE(found.dci_streams_caps.max_log_num_concurent > 0, 1);
	found.comp_mask = 0;
	found.dc_odp_caps = 77;
	CODE(mlx5dv_query_device(ctx, &found), 0);
	CODE(found.dc_odp_caps, 77);
	struct ibv_device_attr plain;
	CODE(ibv_query_device(ctx, &plain), 0);
	/* Who sees this vendor writes to hardware. */
	CODE(plain.vendor_id != 0x02c9, 1);
}

static void refused(void)
{
	struct ibv_qp_init_attr_ex init = base(OPERATIONS);
	struct mlx5dv_qp_init_attr attr = of(MLX5DV_DCTYPE_DCI);
	NONE(mlx5dv_create_qp(ctx, NULL, &attr), EINVAL);
	NONE(mlx5dv_create_qp(ctx, &init, NULL), EINVAL);
	NONE(ibv_create_qp_ex(ctx, &init), EOPNOTSUPP);
	attr.dc_init_attr.dc_type = 3;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr = of(MLX5DV_DCTYPE_DCI);
	attr.comp_mask = 0;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC | 1 << 20;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr = of(MLX5DV_DCTYPE_DCI);
	attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
	attr.dc_init_attr.dci_streams.log_num_concurent = 30;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr = of(MLX5DV_DCTYPE_DCI);
	attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	attr.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr.create_flags = 1 << 30;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	attr.create_flags = MLX5DV_QP_CREATE_SIG_PIPELINING;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EOPNOTSUPP);
	attr = of(MLX5DV_DCTYPE_DCI);
	attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS;
	attr.send_ops_flags = MLX5DV_QP_EX_WITH_MEMCPY;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EOPNOTSUPP);
	attr = of(MLX5DV_DCTYPE_DCI);
	init.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EOPNOTSUPP);
	init = base(OPERATIONS);
	init.comp_mask &= ~IBV_QP_INIT_ATTR_PD;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	init = base(OPERATIONS);
	init.qp_type = IBV_QPT_RC;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	/* A target has no send queue, and needs where it receives. */
	init = base(OPERATIONS);
	attr = of(MLX5DV_DCTYPE_DCT);
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	init = base(0);
	init.srq = NULL;
	NONE(mlx5dv_create_qp(ctx, &init, &attr), EINVAL);
	CODE(mlx5dv_qp_ex_from_ibv_qp_ex(NULL) == NULL, 1);
	/* What only the hardware does. */
	struct mlx5dv_mkey_init_attr mkey = { .pd = pd, .max_entries = 1 };
	NONE(mlx5dv_create_mkey(&mkey), EOPNOTSUPP);
	struct mlx5dv_obj object = { 0 };
	CODE(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), EOPNOTSUPP);
	char in[16] = { 0 }, out[16];
	CODE(mlx5dv_devx_general_cmd(ctx, in, sizeof(in), out, sizeof(out)), EOPNOTSUPP);
}

/* A plain QP made by libmlx5's call. */
static void plain(void)
{
	struct ibv_qp_init_attr_ex init = base(IBV_QP_EX_WITH_SEND);
	struct mlx5dv_qp_init_attr attr = { 0 };
	init.qp_type = IBV_QPT_RC;
	init.srq = NULL;
	struct ibv_qp *qp;
	MADE(qp, mlx5dv_create_qp(ctx, &init, &attr));
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CODE(ex && ex->wr_send && !ex->wr_rdma_write, 1);
	CODE(mlx5dv_qp_ex_from_ibv_qp_ex(ex)->wr_set_dc_addr == NULL, 1);
	CODE(mlx5dv_dci_stream_id_reset(qp, 0), EOPNOTSUPP);
	CODE(ibv_destroy_qp(qp), 0);
	MADE(qp, mlx5dv_create_qp(ctx, &init, NULL));
	CODE(ibv_destroy_qp(qp), 0);
}

static int complete(struct ibv_qp_ex *ex, struct ibv_ah *to, uint32_t number, uint64_t key, int stream)
{
	struct mlx5dv_qp_ex *dc = mlx5dv_qp_ex_from_ibv_qp_ex(ex);
	if (stream < 0)
		mlx5dv_wr_set_dc_addr(dc, to, number, key);
	else
		mlx5dv_wr_set_dc_addr_stream(dc, to, number, key, stream);
	return ibv_wr_complete(ex);
}

static void traffic(struct ibv_qp *dct)
{
	struct ibv_qp *dci = initiator(0, 0);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dci);
	struct ibv_wc wc;
	ex->wr_flags = IBV_SEND_SIGNALED;
	memset(buffer, 1, HALF);
	memset(buffer + HALF, 2, HALF);

	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, HALF);
	CODE(complete(ex, ah, dct->qp_num, KEY, -1), 0);
	CODE(status_of(&wc), IBV_WC_SUCCESS);
	CODE(memcmp(buffer, buffer + HALF, HALF), 0);

	memset(buffer + HALF, 3, HALF);
	ibv_wr_start(ex);
	ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)buffer + HALF);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, HALF);
	CODE(complete(ex, ah, dct->qp_num, KEY, 0), 0);
	CODE(status_of(&wc), IBV_WC_SUCCESS);
	CODE(buffer[HALF - 1], 3);

	uint64_t *word = (uint64_t *)(buffer + HALF);
	*word = 40;
	ibv_wr_start(ex);
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)word, 2);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CODE(complete(ex, ah, dct->qp_num, KEY, 0), 0);
	CODE(status_of(&wc), IBV_WC_SUCCESS);
	CODE((int)*word, 42);
	CODE((int)*(uint64_t *)buffer, 40);

	struct ibv_sge sge = { (uintptr_t)buffer + HALF, HALF, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad;
	CODE(ibv_post_srq_recv(srq, &recv, &bad), 0);
	memset(buffer + HALF, 4, HALF);
	ibv_wr_start(ex);
	ibv_wr_send_imm(ex, htobe32(0x1234));
	ibv_wr_set_inline_data(ex, "seven..", 7);
	CODE(complete(ex, ah, dct->qp_num, KEY, 0), 0);
	for (int at = 0; at < 2; at++) {
		CODE(status_of(&wc), IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV) {
			CODE((int)wc.wr_id, 9);
			CODE(wc.byte_len, 7);
			CODE(be32toh(wc.imm_data), 0x1234);
			CODE(wc.qp_num == dct->qp_num && wc.src_qp == dci->qp_num, 1);
		}
	}
	CODE(memcmp(buffer + HALF, "seven..", 7), 0);

	/* Nowhere to go; no address; more than there is room for. */
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CODE(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
	CODE(complete(ex, NULL, dct->qp_num, KEY, 0), EINVAL);
	ibv_wr_start(ex);
	CODE(complete(ex, ah, dct->qp_num, KEY, 0), EINVAL);
	struct ibv_ah forged = { ctx, pd, ah->handle ^ 1 };
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
	CODE(complete(ex, &forged, dct->qp_num, KEY, 0), EINVAL);
	struct ibv_send_wr plain = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 }, *failed;
	CODE(ibv_post_send(dci, &plain, &failed), EINVAL);
	CODE(mlx5dv_dci_stream_id_reset(dci, 0), EINVAL);
	CODE(mlx5dv_dci_stream_id_reset(NULL, 0), EINVAL);
	CODE(mlx5dv_dci_stream_id_reset(dct, 0), EOPNOTSUPP);
	CODE(ibv_destroy_qp(dci), 0);
}

/* One stream fails, the others go on, and it does after it was reset. */
static void streams(struct ibv_qp *dct)
{
	struct ibv_qp *dci = initiator(2, 2);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(dci);
	struct ibv_wc wc;
	ex->wr_flags = IBV_SEND_SIGNALED;
	for (int round = 0; round < 2; round++) {
		/* A key that no target has. */
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
		CODE(complete(ex, ah, dct->qp_num, KEY + 1, 1), 0);
		CODE(status_of(&wc), IBV_WC_REM_ACCESS_ERR);
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
		CODE(complete(ex, ah, dct->qp_num, KEY, 2), 0);
		CODE(status_of(&wc), IBV_WC_SUCCESS);
		CODE(mlx5dv_dci_stream_id_reset(dci, 2), EINVAL);
		CODE(mlx5dv_dci_stream_id_reset(dci, 1), 0);
		ibv_wr_start(ex);
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + HALF);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8);
		CODE(complete(ex, ah, dct->qp_num, KEY, 1), 0);
		CODE(status_of(&wc), IBV_WC_SUCCESS);
	}
	CODE(ibv_destroy_qp(dci), 0);
}

int main(void)
{
	struct ibv_device **list;
	MADE(list, ibv_get_device_list(NULL));
	devices(list[0]);
	CODE(ibv_query_gid(ctx, 1, 0, &gid), 0);
	MADE(buffer, aligned_alloc(4096, LENGTH));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(cq, ibv_create_cq(ctx, 32, NULL, NULL, 0));
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	MADE(srq, ibv_create_srq(pd, &srq_init));
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	MADE(mr, ibv_reg_mr(pd, buffer, LENGTH, all));
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	MADE(ah, ibv_create_ah(pd, &to));
	refused();
	plain();
	struct ibv_qp *dct = target();
	traffic(dct);
	streams(dct);
	CODE(ibv_destroy_srq(srq), EBUSY);
	CODE(ibv_destroy_qp(dct), 0);
	CODE(ibv_destroy_ah(ah), 0);
	CODE(ibv_destroy_srq(srq), 0);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(ctx), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
