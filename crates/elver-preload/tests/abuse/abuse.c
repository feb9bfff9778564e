/* Misuse of verbs, each with the errno that it must have: wrong handles, null pointers, huge counts. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *buffer;
enum { LENGTH = 8192 };

static struct ibv_qp *qp_of(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { 8, 8, 2, 2, 64 },
	};
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(pd, &init));
	return qp;
}

static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY);
	attr.qp_state = IBV_QPS_RTR;
	error = error ? error : ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	return error ? error : ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void domains(void)
{
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_td *td;
	MADE(td, ibv_alloc_td(ctx, &td_init));
	struct ibv_parent_domain_init_attr init = { .pd = pd, .td = td };
	struct ibv_pd *parent, *base;
	MADE(base, ibv_alloc_pd(ctx));
	init.pd = base;
	MADE(parent, ibv_alloc_parent_domain(ctx, &init));
	BOTH(ibv_dealloc_pd(base), EBUSY);
	CODE(ibv_dealloc_td(td), EBUSY);
	init.pd = parent;
	NONE(ibv_alloc_parent_domain(ctx, &init), EINVAL);
	init.pd = NULL;
	NONE(ibv_alloc_parent_domain(ctx, &init), EINVAL);
	init.pd = base;
	init.comp_mask = 1 << 5;
	NONE(ibv_alloc_parent_domain(ctx, &init), EINVAL);
	init.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	NONE(ibv_alloc_parent_domain(ctx, &init), EINVAL);
	NONE(ibv_alloc_parent_domain(ctx, NULL), EINVAL);
	td_init.comp_mask = 1;
	NONE(ibv_alloc_td(ctx, &td_init), EINVAL);
	CODE(ibv_dealloc_pd(parent), 0);
	CODE(ibv_dealloc_td(td), 0);
	CODE(ibv_dealloc_pd(base), 0);
	CODE(ibv_dealloc_pd(NULL), EINVAL);
	struct ibv_pd forged = { ctx, pd->handle ^ 1 };
	NONE(ibv_reg_mr(&forged, buffer, LENGTH, 0), EINVAL);
}

static void regions(void)
{
	int all = IBV_ACCESS_LOCAL_WRITE;
	NONE(ibv_reg_mr(pd, NULL, LENGTH, all), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 0, all), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, SIZE_MAX, all), EFAULT);
	NONE(ibv_reg_mr(pd, (void *)4096, LENGTH, all), EFAULT);
	NONE(ibv_reg_mr(pd, buffer, LENGTH, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, LENGTH, 1 << 15), EOPNOTSUPP);
	NONE(ibv_reg_mr(NULL, buffer, LENGTH, all), EINVAL);
	NONE(ibv_reg_mr_iova2(pd, buffer, LENGTH, UINT64_MAX - 8, all), EINVAL);
	CODE(ibv_dereg_mr(NULL), EINVAL);
	enum { PAGE = 4096 };
	char *pages;
	struct ibv_mr *read;
	MADE(pages, mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CODE(mprotect(pages + PAGE, PAGE, PROT_READ), 0);
	CODE(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE), 0);
	NONE(ibv_reg_mr(pd, pages + PAGE, 8, all), EFAULT);
	NONE(ibv_reg_mr(pd, pages, PAGE + 1, all), EFAULT);
	NONE(ibv_reg_mr(pd, pages + PAGE, 8, IBV_ACCESS_MW_BIND), EFAULT);
	NONE(ibv_reg_mr(pd, pages + 2 * PAGE, 8, 0), EFAULT);
	MADE(read, ibv_reg_mr(pd, pages, 2 * PAGE, IBV_ACCESS_REMOTE_READ));
	CODE(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all), IBV_REREG_MR_ERR_CMD);
	CODE(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, pages + PAGE, PAGE, 0), 0);
	CODE(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, pages, PAGE, all), 0);
	CODE(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, pages + PAGE, PAGE, 0), IBV_REREG_MR_ERR_CMD);
	CODE(ibv_dereg_mr(read), 0);
	CODE(munmap(pages, 3 * PAGE), 0);
	CODE(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
	CODE(ibv_rereg_mr(mr, 8, pd, buffer, LENGTH, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, all), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, LENGTH, 0), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	NONE(ibv_import_mr(pd, mr->handle ^ 1), ENOENT);
	NONE(ibv_import_pd(ctx, pd->handle ^ 1), ENOENT);
	struct ibv_pd *other;
	MADE(other, ibv_alloc_pd(ctx));
	NONE(ibv_import_mr(other, mr->handle), EINVAL);
	CODE(ibv_dealloc_pd(other), 0);
	NONE(ibv_import_device(-1), EBADF);
	int fd = open("/dev/null", O_RDONLY);
	NONE(ibv_import_device(fd), EINVAL);
	check("the descriptor stays open", fcntl(fd, F_GETFD) == -1, 0);
	close(fd);
	struct ibv_device_attr_ex attr;
	struct ibv_query_device_ex_input input = { 1 };
	CODE(ibv_query_device_ex(ctx, &input, &attr), EINVAL);
	CODE(ibv_query_device_ex(ctx, NULL, NULL), EINVAL);
}

static void queues(void)
{
	NONE(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(ctx, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(ctx, INT_MAX, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(ctx, 10, NULL, NULL, 1), EINVAL);
	NONE(ibv_create_cq(ctx, 10, NULL, NULL, -1), EINVAL);
	BOTH(ibv_resize_cq(cq, 0), EINVAL);
	CODE(ibv_resize_cq(cq, -1), EINVAL);
	CODE(ibv_resize_cq(cq, INT_MAX), EINVAL);
	CODE(ibv_resize_cq(NULL, 1), EINVAL);
	struct ibv_wc wc;
	struct ibv_cq forged = { .context = ctx, .handle = cq->handle ^ 1 };
	CODE(ibv_poll_cq(&forged, 1, &wc), -1);
	CODE(ibv_poll_cq(cq, -1, &wc), -1);
	CODE(ibv_destroy_cq(&forged), EINVAL);
	CODE(ibv_destroy_cq(NULL), EINVAL);
	CODE(ibv_req_notify_cq(&forged, 0), EINVAL);

	struct ibv_srq_init_attr init = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq;
	MADE(srq, ibv_create_srq(pd, &init));
	struct ibv_srq_attr attr = { 8, 1, 9 };
	CODE(ibv_modify_srq(srq, &attr, 0), EINVAL);
	CODE(ibv_modify_srq(srq, &attr, 1 << 4), EINVAL);
	CODE(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
	CODE(ibv_query_srq(srq, &attr), 0);
	check("what was refused changed nothing", attr.max_wr, 4);
	attr.max_wr = 0;
	CODE(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	CODE(ibv_modify_srq(srq, NULL, IBV_SRQ_MAX_WR), EINVAL);
	CODE(ibv_query_srq(srq, NULL), EINVAL);
	CODE(ibv_destroy_srq(srq), 0);
	CODE(ibv_destroy_srq(NULL), EINVAL);
	init.attr.max_wr = UINT_MAX;
	NONE(ibv_create_srq(pd, &init), EINVAL);
	struct ibv_srq_init_attr_ex ex = {
		.attr = { 4, 1, 0 }, .pd = pd, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
	};
	/* It needs a domain and a CQ. */
	NONE(ibv_create_srq_ex(ctx, &ex), EINVAL);
	ex.srq_type = IBV_SRQT_TM;
	NONE(ibv_create_srq_ex(ctx, &ex), EOPNOTSUPP);

	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_CVLAN };
	NONE(ibv_create_cq_ex(ctx, &cq_init), EOPNOTSUPP);
	cq_init.wc_flags = IBV_WC_EX_WITH_IMM;
	cq_init.comp_mask = 1 << 9;
	NONE(ibv_create_cq_ex(ctx, &cq_init), EOPNOTSUPP);
	cq_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	NONE(ibv_create_cq_ex(ctx, &cq_init), EINVAL);
	NONE(ibv_create_cq_ex(ctx, NULL), EINVAL);
	cq_init.comp_mask = 0;
	struct ibv_cq_ex *cq_ex;
	MADE(cq_ex, ibv_create_cq_ex(ctx, &cq_init));
	struct ibv_poll_cq_attr poll = { 1 };
	CODE(ibv_start_poll(cq_ex, &poll), EINVAL);
	CODE(ibv_start_poll(cq_ex, NULL), EINVAL);
	poll.comp_mask = 0;
	CODE(ibv_start_poll(cq_ex, &poll), ENOENT);
	CODE(ibv_start_poll(cq_ex, &poll), ENOENT);
	ibv_end_poll(cq_ex);
	CODE(ibv_start_poll(cq_ex, &poll), ENOENT);
	CODE(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)), 0);
}

static void pairs(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = 77 };
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.qp_type = IBV_QPT_RAW_PACKET;
	NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = UINT_MAX;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_send_wr = 1;
	init.send_cq = NULL;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	NONE(ibv_create_qp(pd, NULL), EINVAL);
	NONE(ibv_create_qp(NULL, &init), EINVAL);

	struct ibv_qp *qp = qp_of(IBV_QPT_UD);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	CODE(ibv_modify_qp(qp, &attr, 1 << 30), EINVAL);
	CODE(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	CODE(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = 99;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	CODE(ibv_query_qp(qp, NULL, 0, &init), EINVAL);
	struct ibv_sge sge[3] = { { (uintptr_t)buffer, 16, mr->lkey } };
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_recv_wr recv = { .sg_list = sge, .num_sge = 1 }, *bad_recv = NULL;
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	CODE(to_rts(qp), 0);
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	check("the bad WR is named", bad == &wr, 1);
	CODE(ibv_post_send(qp, &wr, NULL), EINVAL);
	struct ibv_ah forged = { ctx, pd, 12345 };
	wr.wr.ud.ah = &forged;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	int counts[] = { -1, 3, INT_MAX };
	for (int at = 0; at < 3; at++) {
		wr.num_sge = recv.num_sge = counts[at];
		CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
		CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	}
	wr.num_sge = recv.num_sge = 1;
	wr.sg_list = recv.sg_list = NULL;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	wr.sg_list = sge;
	wr.opcode = 99;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE;
	sge[0].length = UINT_MAX;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	/* Those of programs that pack their structures lie anywhere. */
	char packed[1 + sizeof(struct ibv_sge)];
	memcpy(packed + 1, sge, sizeof(struct ibv_sge));
	recv.sg_list = (void *)(packed + 1);
	for (int at = 0; at < 8; at++)
		CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	recv.sg_list = sge;
	CODE(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
	struct ibv_ah_attr ah = { .port_num = 2, .is_global = 1 };
	NONE(ibv_create_ah(pd, &ah), EINVAL);
	NONE(ibv_create_ah(pd, NULL), EINVAL);
	NONE(ibv_create_ah(NULL, &ah), EINVAL);
	CODE(ibv_destroy_ah(NULL), EINVAL);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_qp(NULL), EINVAL);
}

/* Multicast groups: who is in one, how often, and of which kind. */
static void groups(void)
{
	struct ibv_device_attr attr;
	union ibv_gid group = { .raw = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 230, 0, 99, 1 } };
	union ibv_gid host = { .raw = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 99, 1 } };
	union ibv_gid v6 = { .raw = { 0xff, 0x02, [15] = 1 } };
	struct ibv_qp *qp = qp_of(IBV_QPT_UD), *other = qp_of(IBV_QPT_RC);
	int count = 0;

	CODE(ibv_query_device(ctx, &attr), 0);
	/* Programs compare it. */
	CODE(attr.atomic_cap, IBV_ATOMIC_HCA);
	CODE(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0 && attr.max_total_mcast_qp_attach > 0, 1);
	CODE(ibv_attach_mcast(qp, &host, 0), EINVAL);
	CODE(ibv_attach_mcast(qp, &v6, 0), EINVAL);
	CODE(ibv_attach_mcast(other, &group, 0), EINVAL);
	CODE(ibv_attach_mcast(qp, NULL, 0), EINVAL);
	CODE(ibv_detach_mcast(qp, &group, 0), EINVAL);
	CODE(ibv_attach_mcast(qp, &group, 0), 0);
	CODE(ibv_attach_mcast(qp, &group, 0xffff), 0);
	CODE(ibv_destroy_qp(qp), EBUSY);
	CODE(ibv_detach_mcast(other, &group, 0), EINVAL);
	CODE(ibv_detach_mcast(qp, &group, 0), 0);
	CODE(ibv_detach_mcast(qp, &group, 0), EINVAL);
	for (; count < attr.max_mcast_grp; count++, group.raw[14]++)
		CODE(ibv_attach_mcast(qp, &group, 0), 0);
	CODE(ibv_attach_mcast(qp, &group, 0), ENOMEM);
	while (count--) {
		group.raw[14]--;
		CODE(ibv_detach_mcast(qp, &group, 0), 0);
	}
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_qp(other), 0);
}

/* XRC: domains that are in use, queues of another kind, targets that are opened by a wrong number. */
static void xrc(void)
{
	struct ibv_xrcd_init_attr named = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	struct ibv_xrcd *xrcd, *second, *other;
	struct ibv_srq *srq, *basic;
	struct ibv_qp *target, *opened;
	unsigned int number;
	int fd = open("/tmp", O_RDONLY);

	NONE(ibv_open_xrcd(ctx, &named), EINVAL);
	named.comp_mask = ~0u;
	NONE(ibv_open_xrcd(ctx, &named), EOPNOTSUPP);
	named.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	MADE(other, ibv_open_xrcd(ctx, &named));
	named.fd = fd;
	NONE(ibv_open_xrcd(ctx, &named), EAGAIN);
	named.oflags = O_CREAT;
	MADE(xrcd, ibv_open_xrcd(ctx, &named));
	MADE(second, ibv_open_xrcd(ctx, &named));
	named.oflags = O_CREAT | O_EXCL;
	NONE(ibv_open_xrcd(ctx, &named), EINVAL);
	named.fd = 1 << 20;
	NONE(ibv_open_xrcd(ctx, &named), EBADF);

	struct ibv_srq_init_attr_ex ex = {
		.attr = { 4, 1, 0 }, .pd = pd, .cq = cq, .xrcd = xrcd, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
	};
	MADE(srq, ibv_create_srq_ex(ctx, &ex));
	CODE(ibv_get_srq_num(srq, &number), 0);
	CODE(number < 1 << 24, 1);
	struct ibv_srq_init_attr plain = { .attr = { 4, 1, 0 } };
	MADE(basic, ibv_create_srq(pd, &plain));
	CODE(ibv_get_srq_num(basic, &number), 0);
	ex.xrcd = NULL;
	NONE(ibv_create_srq_ex(ctx, &ex), EINVAL);

	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV };
	NONE(ibv_create_qp_ex(ctx, &init), EINVAL);
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	NONE(ibv_create_qp_ex(ctx, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	NONE(ibv_create_qp_ex(ctx, &init), EINVAL);
	init.xrcd = second;
	MADE(target, ibv_create_qp_ex(ctx, &init));
	struct ibv_qp_init_attr classic = { .qp_type = IBV_QPT_XRC_RECV, .send_cq = cq, .recv_cq = cq };
	NONE(ibv_create_qp(pd, &classic), EOPNOTSUPP);
	struct ibv_recv_wr receive = { 0 }, *bad;
	CODE(ibv_post_recv(target, &receive, &bad), EINVAL);

	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD, .qp_num = target->qp_num,
		.xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV,
	};
	NONE(ibv_open_qp(ctx, &attr), EINVAL);
	attr.comp_mask |= IBV_QP_OPEN_ATTR_TYPE;
	attr.xrcd = other;
	NONE(ibv_open_qp(ctx, &attr), EINVAL);
	attr.xrcd = xrcd;
	attr.qp_num ^= 1;
	NONE(ibv_open_qp(ctx, &attr), EINVAL);
	attr.qp_num ^= 1;
	MADE(opened, ibv_open_qp(ctx, &attr));
	CODE(opened->qp_num == target->qp_num, 1);
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_RESET };
	CODE(ibv_destroy_qp(target), 0);
	CODE(ibv_modify_qp(opened, &state, IBV_QP_STATE), 0);
	CODE(ibv_close_xrcd(second), 0);
	CODE(ibv_close_xrcd(xrcd), EBUSY);
	CODE(ibv_destroy_qp(opened), 0);
	NONE(ibv_open_qp(ctx, &attr), EINVAL);
	CODE(ibv_close_xrcd(xrcd), EBUSY);
	CODE(ibv_destroy_srq(srq), 0);
	CODE(ibv_destroy_srq(basic), 0);
	CODE(ibv_close_xrcd(xrcd), 0);
	CODE(ibv_close_xrcd(other), 0);
	close(fd);
}

static void extended(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .pd = pd,
		.cap = { 4, 4, 2, 2, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	NONE(ibv_create_qp_ex(ctx, &init), EINVAL);
	init.comp_mask |= IBV_QP_INIT_ATTR_PD;
	uint64_t wrong[] = { IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_TSO, IBV_QP_EX_WITH_ATOMIC_WRITE, 1ull << 60 };
	for (int at = 0; at < 4; at++) {
		init.send_ops_flags = wrong[at];
		NONE(ibv_create_qp_ex(ctx, &init), EOPNOTSUPP);
	}
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH;
	NONE(ibv_create_qp_ex(ctx, &init), EOPNOTSUPP);
	init.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH;
	struct ibv_qp *qp, *plain = qp_of(IBV_QPT_UD);
	MADE(qp, ibv_create_qp_ex(ctx, &init));
	check("a plain QP is not extended", !!ibv_qp_to_qp_ex(plain), 0);
	check("nor is none", !!ibv_qp_to_qp_ex(NULL), 0);
	CODE(ibv_destroy_qp(plain), 0);
	struct ibv_qp_ex *ex;
	MADE(ex, ibv_qp_to_qp_ex(qp));

	ibv_wr_start(ex);
	ibv_wr_send(ex);
	CODE(ibv_wr_complete(ex), EINVAL); /* in RESET */
	CODE(to_rts(qp), 0);
	struct ibv_port_attr port;
	CODE(ibv_query_port(ctx, 1, &port), 0);
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	CODE(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid), 0);
	struct ibv_ah *ah;
	MADE(ah, ibv_create_ah(pd, &attr));
	struct ibv_sge sge[3] = { { (uintptr_t)buffer, 16, mr->lkey } };
	struct ibv_data_buf bufs[2] = { { buffer, 32 }, { buffer, SIZE_MAX } };

#define BATCH(steps, expected) \
	do { \
		ibv_wr_start(ex); \
		ex->wr_id = 9; \
		ex->wr_flags = IBV_SEND_SIGNALED; \
		steps; \
		check(#steps, ibv_wr_complete(ex), expected); \
	} while (0)
#define TO ibv_wr_set_ud_addr(ex, ah, qp->qp_num, 7)

	BATCH(, 0);
	BATCH(ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer, 8), EINVAL);
	BATCH(ibv_wr_send(ex), EINVAL);
	BATCH(ibv_wr_send(ex); ibv_wr_set_ud_addr(ex, NULL, 1, 1), EINVAL);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_sge_list(ex, SIZE_MAX, sge), EINVAL);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_sge_list(ex, 2, NULL), EINVAL);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_inline_data(ex, buffer, SIZE_MAX), ENOMEM);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_inline_data(ex, NULL, 8), EINVAL);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_inline_data_list(ex, 2, bufs), ENOMEM);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_inline_data_list(ex, SIZE_MAX, NULL), EINVAL);
	BATCH(for (int at = 0; at < 1000; at++) { ibv_wr_send(ex); TO; }, ENOMEM);
	/* The first is good, the second has nowhere to go: none is posted. */
	BATCH(ibv_wr_send(ex); TO; ibv_wr_send(ex), EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	struct ibv_wc wc[4];
	check("nothing was posted", ibv_poll_cq(cq, 4, wc), 0);
	BATCH(ibv_wr_send(ex); TO; ibv_wr_set_inline_data_list(ex, 1, bufs);
	      ibv_wr_send(ex); TO; ibv_wr_set_sge_list(ex, 1, sge), 0);
	int found = 0, now;
	while (found < 2 && (now = ibv_poll_cq(cq, 4, wc)) >= 0)
		for (found += now; now > 0; now--)
			check("what was posted completes", wc[now - 1].status | (wc[now - 1].wr_id != 9), 0);
	CODE(ibv_destroy_ah(ah), 0);
	CODE(ibv_destroy_qp(qp), 0);
}

/* The extended interface binds windows of type 2 alone, too: of the other type the program has no next key. */
static void bind_extended(struct ibv_mw *one, struct ibv_mw *two)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_BIND_MW };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_mw_bind_info info = { mr, (uintptr_t)buffer, 8, IBV_ACCESS_REMOTE_READ };
	struct ibv_qp *qp;
	struct ibv_wc wc;
	MADE(qp, ibv_create_qp_ex(ctx, &init));
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	CODE(ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid), 0);
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), 0);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	BATCH(ibv_wr_bind_mw(ex, one, ibv_inc_rkey(one->rkey), &info), EINVAL);
	BATCH(ibv_wr_bind_mw(ex, NULL, 1, &info), EINVAL);
	check("nothing was bound", ibv_poll_cq(cq, 1, &wc), 0);
	BATCH(ibv_wr_bind_mw(ex, two, ibv_inc_rkey(two->rkey), &info), 0);
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	check("a window of type 2 is bound", wc.status, IBV_WC_SUCCESS);
	CODE(ibv_destroy_qp(qp), 0);
}

static void windows(void)
{
	NONE(ibv_alloc_mw(pd, 3), EINVAL);
	NONE(ctx->ops.alloc_mw(NULL, IBV_MW_TYPE_1), EINVAL);
	CODE(ctx->ops.dealloc_mw(NULL), EINVAL);
	struct ibv_mw *one, *two;
	MADE(one, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	MADE(two, ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	struct ibv_qp *qp = qp_of(IBV_QPT_RC);
	struct ibv_mw_bind bind = { .bind_info = { mr, (uintptr_t)buffer, 8, IBV_ACCESS_REMOTE_READ } };
	uint32_t rkey = one->rkey;
	CODE(ibv_bind_mw(qp, one, &bind), EINVAL); /* in RESET */
	CODE(ctx->ops.bind_mw(qp, two, &bind), EINVAL);
	CODE(ctx->ops.bind_mw(qp, NULL, &bind), EINVAL);
	CODE(ctx->ops.bind_mw(NULL, one, &bind), EINVAL);
	CODE(ctx->ops.bind_mw(qp, one, NULL), EINVAL);
	bind.bind_info.mw_access_flags = 1 << 12;
	CODE(ibv_bind_mw(qp, one, &bind), EINVAL);
	bind.bind_info.mr = NULL;
	CODE(ctx->ops.bind_mw(qp, one, &bind), EINVAL);
	check("its key is as it was", one->rkey == rkey, 1);
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .bind_mw = { .mw = one } }, *bad;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	wr.bind_mw.mw = NULL;
	CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
	bind_extended(one, two);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_dealloc_mw(one), 0);
	CODE(ibv_dealloc_mw(two), 0);
}

static void device_memory(void)
{
	struct ibv_device_attr_ex attr;
	CODE(ibv_query_device_ex(ctx, NULL, &attr), 0);
	struct ibv_alloc_dm_attr init = { .length = 0 };
	NONE(ibv_alloc_dm(ctx, &init), EINVAL);
	NONE(ibv_alloc_dm(ctx, NULL), EINVAL);
	init.length = SIZE_MAX;
	NONE(ibv_alloc_dm(ctx, &init), ENOMEM);
	init.length = attr.max_dm_size + 1;
	NONE(ibv_alloc_dm(ctx, &init), ENOMEM);
	init.length = 64;
	init.log_align_req = 63;
	NONE(ibv_alloc_dm(ctx, &init), EINVAL);
	init.log_align_req = 0;
	init.comp_mask = 1;
	NONE(ibv_alloc_dm(ctx, &init), EINVAL);
	init.comp_mask = 0;
	struct ibv_dm *dm;
	MADE(dm, ibv_alloc_dm(ctx, &init));
	CODE(ibv_memcpy_to_dm(dm, UINT64_MAX - 3, buffer, 8), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 60, buffer, 8), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 2, buffer, 8), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 0, buffer, SIZE_MAX - 3), EINVAL);
	CODE(ibv_memcpy_to_dm(dm, 0, NULL, 8), EFAULT);
	CODE(ibv_memcpy_from_dm(NULL, dm, 0, 8), EFAULT);
	CODE(ibv_memcpy_from_dm(buffer, dm, 0, 68), EINVAL);
	int rights = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
	NONE(ibv_reg_dm_mr(pd, dm, 0, 68, rights), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, UINT64_MAX - 3, 8, rights), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 8, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NONE(ibv_reg_dm_mr(pd, NULL, 0, 8, rights), EINVAL);
	struct ibv_mr *of;
	MADE(of, ibv_reg_dm_mr(pd, dm, 0, 64, rights));
	CODE(ibv_free_dm(dm), EBUSY);
	CODE(ibv_dereg_mr(of), 0);
	NONE(ibv_import_dm(ctx, dm->handle + 1), ENOENT);
	CODE(ibv_free_dm(dm), 0);
}

/* Memory that is not there when it is needed ends a WR, and not the program. */
static void on_demand(void)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
	NONE(ibv_reg_mr(pd, NULL, LENGTH, rights), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, 0, rights), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, SIZE_MAX, rights), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, LENGTH, rights | IBV_ACCESS_ZERO_BASED), EOPNOTSUPP);
	struct ibv_mr *gone, *whole, *fixed;
	char *page = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MADE(gone, ibv_reg_mr(pd, page, LENGTH, rights));
	MADE(whole, ibv_reg_mr(pd, NULL, SIZE_MAX, rights));
	MADE(fixed, ibv_reg_mr(pd, page, LENGTH, IBV_ACCESS_ON_DEMAND));
	struct ibv_sge sge = { (uintptr_t)page, 16, gone->lkey };
#define ADVISE(advice, expected) 	CODE(ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), expected)
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0);
	ADVISE(99, EOPNOTSUPP);
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 9, &sge, 1), EINVAL);
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, UINT_MAX), EINVAL);
	CODE(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	sge.length = LENGTH + 1;
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH, EFAULT);
	sge.length = 16;
	sge.lkey = fixed->lkey;
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, EPERM);
	sge.lkey = mr->lkey;
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH, EINVAL);
	sge.lkey = gone->lkey ^ 1;
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH, ENOENT);
	sge.lkey = gone->lkey;
	struct ibv_qp *qp = qp_of(IBV_QPT_UD);
	CODE(to_rts(qp), 0);
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	CODE(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid), 0);
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { NULL, qp->qp_num, 7 },
	}, *bad;
	MADE(wr.wr.ud.ah, ibv_create_ah(pd, &attr));
	struct ibv_sge room = { (uintptr_t)buffer, 64, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &room, .num_sge = 1 }, *bad_recv;
	CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), 0);
	struct ibv_wc wc = { .status = 99 };
	CODE(ibv_post_send(qp, &wr, &bad), 0);
	for (int found = 0; found < 2;) {
		found += ibv_poll_cq(cq, 1, &wc);
		check("memory that is there", wc.status, found ? IBV_WC_SUCCESS : 99);
	}
	munmap(page, LENGTH);
	ADVISE(IBV_ADVISE_MR_ADVICE_PREFETCH, EFAULT);
	sge.lkey = whole->lkey;
	CODE(ibv_post_send(qp, &wr, &bad), 0);
	do
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
	while (wc.wr_id == 1);
	check("memory that is not", wc.status, IBV_WC_LOC_PROT_ERR);
	CODE(ibv_destroy_ah(wr.wr.ud.ah), 0);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_dereg_mr(gone), 0);
	CODE(ibv_dereg_mr(whole), 0);
	CODE(ibv_dereg_mr(fixed), 0);
}

/* A completion of a CQ with time stamps lies between two looks at the clock; one of a QP that is gone is gone. */
static void stamps(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 8,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq *whole = cq;
	struct ibv_cq_ex *ex;
	MADE(ex, ibv_create_cq_ex(ctx, &init));
	// Refused, it is what it was.
	CODE(ibv_resize_cq(ibv_cq_ex_to_cq(ex), 0), EINVAL);
	CODE(ibv_resize_cq(ibv_cq_ex_to_cq(ex), INT_MAX), EINVAL);
	cq = ibv_cq_ex_to_cq(ex);
	struct ibv_values_ex before = { IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	CODE(ibv_query_rt_values_ex(ctx, &before), 0);
	struct ibv_qp *qp = qp_of(IBV_QPT_UD);
	CODE(to_rts(qp), 0);
	struct ibv_sge sge = { (uintptr_t)buffer, 16, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	for (int at = 0; at < 3; at++)
		CODE(ibv_post_recv(qp, &recv, &bad), 0);
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0); /* the receives are flushed */
	CODE(ibv_query_rt_values_ex(ctx, &after), 0);
	CODE(ibv_resize_cq(cq, 2), EINVAL);
	struct ibv_poll_cq_attr poll = { 0 };
	CODE(ibv_start_poll(ex, &poll), 0);
	check("its status", ex->status, IBV_WC_WR_FLUSH_ERR);
	check("its id", ex->wr_id, 5);
	uint64_t raw = ibv_wc_read_completion_ts(ex), wall = ibv_wc_read_completion_wallclock_ns(ex);
	check("not before", raw >= (uint64_t)before.raw_clock.tv_nsec, 1);
	check("not after", raw <= (uint64_t)after.raw_clock.tv_nsec, 1);
	check("in this century", wall / 1000000000 > 1700000000, 1);
	ibv_end_poll(ex);
	struct ibv_wc wc;
	CODE(ibv_poll_cq(cq, 1, &wc), 1);
	attr.qp_state = IBV_QPS_RESET; /* what is left goes, as from any CQ */
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CODE(ibv_poll_cq(cq, 1, &wc), 0);
	CODE(to_rts(qp), 0);
	CODE(ibv_post_recv(qp, &recv, &bad), 0);
	attr.qp_state = IBV_QPS_ERR;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_start_poll(ex, &poll), ENOENT);
	before.comp_mask = 2;
	CODE(ibv_query_rt_values_ex(ctx, &before), EOPNOTSUPP);
	CODE(ibv_query_rt_values_ex(ctx, NULL), EINVAL);
	CODE(ibv_destroy_cq(cq), 0);
	cq = whole;
}

static struct ibv_cq *going;
static int acknowledged;

static void *destroy(void *unused)
{
	check("ibv_destroy_cq", ibv_destroy_cq(going), 0);
	check("it waited for the acknowledgement", __atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST), 1);
	return unused;
}

/* Who destroys a CQ waits until its events are acknowledged (ibv_get_cq_event(3)). */
static void events(void)
{
	struct ibv_comp_channel *channel;
	MADE(channel, ibv_create_comp_channel(ctx));
	struct ibv_cq *whole = cq, *event_cq;
	MADE(cq, ibv_create_cq(ctx, 8, NULL, channel, 0));
	going = cq;
	CODE(ibv_destroy_comp_channel(channel), EBUSY);
	CODE(ibv_destroy_comp_channel(NULL), EINVAL);
	CODE(ibv_req_notify_cq(cq, 0), 0);
	struct ibv_qp *qp = qp_of(IBV_QPT_UD);
	CODE(to_rts(qp), 0);
	struct ibv_sge sge = { (uintptr_t)buffer, 16, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CODE(ibv_post_recv(qp, &recv, &bad), 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0); /* the receive is flushed */
	void *context;
	CODE(ibv_get_cq_event(channel, &event_cq, &context), 0);
	check("the event is the CQ's", event_cq == going, 1);
	CODE(ibv_destroy_cq(going), EBUSY);
	CODE(ibv_destroy_qp(qp), 0);
	pthread_t thread;
	pthread_create(&thread, NULL, destroy, NULL);
	/* Its completions are gone before it waits. */
	struct ibv_wc wc;
	while (ibv_poll_cq(going, 1, &wc) >= 0)
		sched_yield();
	__atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
	ibv_ack_cq_events(going, 1);
	pthread_join(thread, NULL);
	cq = whole;
	CODE(ibv_destroy_comp_channel(channel), 0);
}

/* A structure that is longer than this library knows, as a program's of a later release is. */
static void ports(void)
{
	struct {
		struct ibv_port_attr known;
		uint32_t later[2];
	} attr;
	struct verbs_context *verbs = verbs_get_ctx(ctx);
	memset(&attr, 7, sizeof(attr));
	CODE(verbs->query_port(ctx, 1, &attr.known, sizeof(attr.known) + 4), 0);
	CODE(attr.known.state, IBV_PORT_ACTIVE);
	CODE(attr.known.flags, IBV_QPF_GRH_REQUIRED);
	CODE(attr.later[0], 0);
	CODE(attr.later[1], 0x07070707);
	CODE(verbs->query_port(ctx, 2, &attr.known, sizeof(attr.known)), EINVAL);
	CODE(verbs->query_port(ctx, 1, NULL, sizeof(attr.known)), EINVAL);
	/* The function behind the macro, which knows the structure as it once was: up to `flags`. */
	memset(&attr, 7, sizeof(attr));
	CODE((ibv_query_port)(ctx, 1, (void *)&attr.known), 0);
	CODE(attr.known.flags, IBV_QPF_GRH_REQUIRED);
	CODE(attr.known.port_cap_flags2, 0x0707);
	struct ibv_device_attr_ex device;
	CODE(ibv_query_device_ex(ctx, NULL, &device), 0);
	CODE(device.device_cap_flags_ex == device.orig_attr.device_cap_flags && device.device_cap_flags_ex, 1);
	CODE(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
	CODE(ibv_rate_to_mult(IBV_RATE_100_GBPS), -1);
	CODE(ibv_rate_to_mult(IBV_RATE_1200_GBPS), 480);
	CODE(mult_to_ibv_rate(11), IBV_RATE_28_GBPS);
	CODE(mult_to_ibv_rate(-1), IBV_RATE_MAX);
	CODE(mbps_to_ibv_rate(25781), IBV_RATE_25_GBPS);
}

int main(void)
{
	struct ibv_device **list;
	NONE(ibv_open_device(NULL), EINVAL);
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(buffer, aligned_alloc(4096, LENGTH));
	memset(buffer, 1, LENGTH);
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(cq, ibv_create_cq(ctx, 32, NULL, NULL, 0));
	MADE(mr, ibv_reg_mr(pd, buffer, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	ports();
	domains();
	regions();
	queues();
	pairs();
	groups();
	xrc();
	extended();
	windows();
	device_memory();
	on_demand();
	stamps();
	events();
	CODE(ibv_dealloc_pd(pd), EBUSY);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(ctx), 0);
	CODE(ibv_close_device(NULL), EINVAL);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures > 0;
}
