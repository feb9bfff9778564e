/* What is made with a parent domain keeps it, and its thread domain. */
#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

static struct ibv_context *ctx;
static struct ibv_pd *base, *parent;
static struct ibv_td *td;

/* The parent stays while something is there that was made with it, and so do those that it was made of. */
#define KEEPS(destroy) \
	do { \
		BOTH(ibv_dealloc_pd(parent), EBUSY); \
		CODE(ibv_dealloc_td(td), EBUSY); \
		CODE(destroy, 0); \
	} while (0)

int main(void)
{
	struct ibv_device **list;
	static char bytes[64];
	union ibv_gid gid;
	struct ibv_td_init_attr td_init = { 0 };
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	CODE(ibv_query_gid(ctx, 1, 0, &gid), 0);
	MADE(base, ibv_alloc_pd(ctx));
	MADE(td, ibv_alloc_td(ctx, &td_init));
	struct ibv_parent_domain_init_attr init = { .pd = base, .td = td };
	MADE(parent, ibv_alloc_parent_domain(ctx, &init));

	struct ibv_mr *mr;
	MADE(mr, ibv_reg_mr(parent, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE));
	KEEPS(ibv_dereg_mr(mr));
	struct ibv_mw *mw;
	MADE(mw, ibv_alloc_mw(parent, IBV_MW_TYPE_2));
	KEEPS(ibv_dealloc_mw(mw));
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	struct ibv_ah *ah;
	MADE(ah, ibv_create_ah(parent, &way));
	KEEPS(ibv_destroy_ah(ah));
	struct ibv_srq_init_attr shared = { .attr = { 1, 1, 0 } };
	struct ibv_srq *srq;
	MADE(srq, ibv_create_srq(parent, &shared));
	KEEPS(ibv_destroy_srq(srq));
	struct ibv_cq_init_attr_ex wanted = {
		.cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent,
	};
	struct ibv_cq_ex *extended;
	MADE(extended, ibv_create_cq_ex(ctx, &wanted));
	KEEPS(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
	struct ibv_cq *cq;
	MADE(cq, ibv_create_cq(ctx, 8, NULL, NULL, 0));
	struct ibv_qp_init_attr pair = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp;
	MADE(qp, ibv_create_qp(parent, &pair));
	KEEPS(ibv_destroy_qp(qp));

	/* A region that goes over to another domain is no longer the parent's, nor is one that comes from there before. */
	MADE(mr, ibv_reg_mr(base, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE));
	CODE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, parent, NULL, 0, 0), 0);
	KEEPS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, base, NULL, 0, 0));
	CODE(ibv_dealloc_pd(parent), 0);
	CODE(ibv_dealloc_td(td), 0);
	BOTH(ibv_dealloc_pd(base), EBUSY);
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dealloc_pd(base), 0);
	CODE(ibv_close_device(ctx), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
