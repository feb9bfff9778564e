/* A context that is closed before its objects are destroyed: what is left of it does nothing any more, as a kernel ends what
   belongs to a file that is closed. */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "../abuse/check.h"

enum { LENGTH = 64 };

/* What one end has. */
struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_srq *srq;
	char bytes[LENGTH];
};

static void open_end(struct end *end, struct ibv_device *device)
{
	MADE(end->ctx, ibv_open_device(device));
	MADE(end->pd, ibv_alloc_pd(end->ctx));
	MADE(end->cq, ibv_create_cq(end->ctx, 8, NULL, NULL, 0));
	MADE(end->mr, ibv_reg_mr(end->pd, end->bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	MADE(end->srq, ibv_create_srq(end->pd, &srq));
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .qp_type = IBV_QPT_RC, .cap = { 1, 0, 1, 1, 0 },
	};
	MADE(end->qp, ibv_create_qp(end->pd, &init));
}

static void connect_to(struct ibv_qp *qp, union ibv_gid gid, uint32_t dest)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = dest;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 10;
	CODE(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC),
	     0);
}

/* Writes a byte to the other end; how that went. */
static int write_to(struct end *from, struct end *to, char byte)
{
	from->bytes[0] = byte;
	struct ibv_sge sge = { (uintptr_t)from->bytes, 1, from->mr->lkey };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = { (uintptr_t)to->bytes, to->mr->rkey },
	}, *bad;
	struct ibv_wc wc;
	CODE(ibv_post_send(from->qp, &wr, &bad), 0);
	int count;
	while (!(count = ibv_poll_cq(from->cq, 1, &wc)))
		;
	CODE(count, 1);
	return wc.status;
}

/* A UD QP in a group of 64, a domain of XRC that nobody else may have opened, and all device memory: a context that is closed with these
   leaves room for the next one's. */
static void leave_what_is_had_alone(struct ibv_device *device)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 230, 0, 99, 2 } };
	char name[] = "/tmp/close-XXXXXX";
	int file = mkstemp(name);
	CODE(file >= 0 && !unlink(name), 1);
	for (int round = 0; round < 100; round++) {
		struct ibv_context *ctx;
		struct ibv_pd *pd;
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_dm *dm;
		struct ibv_mr *mr;
		struct ibv_xrcd *xrcd;
		MADE(ctx, ibv_open_device(device));
		MADE(pd, ibv_alloc_pd(ctx));
		MADE(cq, ibv_create_cq(ctx, 1, NULL, NULL, 0));
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
		MADE(qp, ibv_create_qp(pd, &init));
		CODE(ibv_attach_mcast(qp, &group, 0), 0);
		struct ibv_xrcd_init_attr domain = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file, .oflags = O_CREAT | O_EXCL,
		};
		MADE(xrcd, ibv_open_xrcd(ctx, &domain));
		struct ibv_alloc_dm_attr size = { .length = 1 << 20 };
		MADE(dm, ibv_alloc_dm(ctx, &size));
		MADE(mr, ibv_reg_dm_mr(pd, dm, 0, 1 << 20, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE));
		CODE(ibv_close_device(ctx), 0);
		CODE(ibv_detach_mcast(qp, &group, 0), ENODEV);
		CODE(ibv_close_xrcd(xrcd), ENODEV);
		CODE(ibv_free_dm(dm), EINVAL);
	}
	close(file);
}

/* Whatever it is that is left of a context, that stays, as what is left points to it. */
static void leave_one(struct ibv_device *device)
{
	struct ibv_context *ctx;
	struct ibv_comp_channel *channel;
	struct ibv_td_init_attr init = { 0 };
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_td *td;
	struct ibv_xrcd *xrcd;
	MADE(ctx, ibv_open_device(device));
	MADE(channel, ibv_create_comp_channel(ctx));
	CODE(ibv_close_device(ctx), 0);
	CODE(ibv_destroy_comp_channel(channel), ENODEV);
	MADE(ctx, ibv_open_device(device));
	MADE(td, ibv_alloc_td(ctx, &init));
	CODE(ibv_close_device(ctx), 0);
	CODE(ibv_dealloc_td(td), ENODEV);
	MADE(ctx, ibv_open_device(device));
	MADE(xrcd, ibv_open_xrcd(ctx, &domain));
	CODE(ibv_close_device(ctx), 0);
	CODE(ibv_close_xrcd(xrcd), ENODEV);
	/* What was destroyed before is not left. */
	MADE(ctx, ibv_open_device(device));
	MADE(channel, ibv_create_comp_channel(ctx));
	MADE(td, ibv_alloc_td(ctx, &init));
	MADE(xrcd, ibv_open_xrcd(ctx, &domain));
	CODE(ibv_destroy_comp_channel(channel), 0);
	CODE(ibv_dealloc_td(td), 0);
	CODE(ibv_close_xrcd(xrcd), 0);
	CODE(ibv_close_device(ctx), 0);
}

/* What was imported, and a parent domain, are a context's, whose ever that is what they are of. And what is closed makes nothing. */
static void leave_what_is_of_anothers(struct ibv_device *device)
{
	struct ibv_context *ctx, *others;
	struct ibv_pd *pd, *imported;
	struct ibv_mr *mr, *region;
	struct ibv_dm *dm, *memory;
	struct ibv_alloc_dm_attr size = { .length = LENGTH };
	static char bytes[LENGTH];
	MADE(others, ibv_open_device(device));
	MADE(pd, ibv_alloc_pd(others));
	MADE(mr, ibv_reg_mr(pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	MADE(dm, ibv_alloc_dm(others, &size));
	for (int what = 0; what < 4; what++) {
		struct ibv_parent_domain_init_attr parent = { .pd = pd };
		MADE(ctx, ibv_open_device(device));
		MADE(imported, what == 3 ? ibv_alloc_parent_domain(ctx, &parent) : ibv_import_pd(ctx, pd->handle));
		if (what == 1)
			MADE(region, ibv_import_mr(imported, mr->handle));
		if (what == 2)
			MADE(memory, ibv_import_dm(ctx, dm->handle));
		if (what == 1 || what == 2)
			ibv_unimport_pd(imported);
		CODE(ibv_close_device(ctx), 0);
		NONE(ibv_alloc_pd(ctx), ENODEV);
		NONE(ibv_alloc_dm(ctx, &size), ENODEV);
		NONE(ibv_import_dm(ctx, dm->handle), ENODEV);
		if (what == 0)
			ibv_unimport_pd(imported);
		if (what == 1)
			ibv_unimport_mr(region);
		if (what == 2)
			ibv_unimport_dm(memory);
		if (what == 3)
			CODE(ibv_dealloc_pd(imported), ENODEV);
	}
	/* The other one has lost nothing. */
	CODE(ibv_free_dm(dm), 0);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_close_device(others), 0);
}

enum { CONTEXTS = 140, WINDOWS = 1000, HANDLES = 2000 };

/* Contexts that are closed with all that was made leave nothing in the device: there is room for the last as for the first. */
static void leave_much(struct ibv_device *device, union ibv_gid gid)
{
	for (int round = 0; round < CONTEXTS; round++) {
		struct ibv_context *ctx;
		struct ibv_pd *pds[32];
		MADE(ctx, ibv_open_device(device));
		for (int at = 0; at < 32; at++)
			MADE(pds[at], ibv_alloc_pd(ctx));
		for (int at = 0; at < WINDOWS; at++) {
			struct ibv_mw *mw;
			MADE(mw, ibv_alloc_mw(pds[0], IBV_MW_TYPE_2));
		}
		struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
		struct ibv_ah *ah;
		for (int at = 0; at < HANDLES; at++)
			MADE(ah, ibv_create_ah(pds[0], &way));
		CODE(ibv_close_device(ctx), 0);
		CODE(ibv_destroy_ah(ah), ENODEV);
		CODE(ibv_dealloc_pd(pds[0]), ENODEV);
	}
}

int main(void)
{
	struct ibv_device **list;
	static struct end ours, left;
	union ibv_gid gid;
	MADE(list, ibv_get_device_list(NULL));
	open_end(&ours, list[0]);
	open_end(&left, list[0]);
	CODE(ibv_query_gid(ours.ctx, 1, 0, &gid), 0);
	connect_to(ours.qp, gid, left.qp->qp_num);
	connect_to(left.qp, gid, ours.qp->qp_num);
	CODE(write_to(&ours, &left, 1), IBV_WC_SUCCESS);
	CODE(left.bytes[0], 1);
	int fd = left.ctx->async_fd;
	CODE(ibv_close_device(left.ctx), 0);
	CODE(close(fd), -1);
	CODE(write_to(&ours, &left, 2), IBV_WC_RETRY_EXC_ERR);
	CODE(left.bytes[0], 1);
	/* Who comes too late finds nothing, and breaks nothing. */
	CODE(ibv_destroy_qp(left.qp), ENODEV);
	CODE(ibv_destroy_srq(left.srq), ENODEV);
	CODE(ibv_destroy_cq(left.cq), ENODEV);
	CODE(ibv_dereg_mr(left.mr), ENODEV);
	CODE(ibv_destroy_qp(ours.qp), 0);
	CODE(ibv_destroy_srq(ours.srq), 0);
	CODE(ibv_destroy_cq(ours.cq), 0);
	CODE(ibv_dereg_mr(ours.mr), 0);
	CODE(ibv_dealloc_pd(ours.pd), 0);
	CODE(ibv_close_device(ours.ctx), 0);
	leave_what_is_had_alone(list[0]);
	leave_one(list[0]);
	leave_what_is_of_anothers(list[0]);
	leave_much(list[0], gid);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
