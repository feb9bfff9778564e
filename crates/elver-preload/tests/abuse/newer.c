/* Calls that came after rdma-core 44, by their versions: the headers need not have them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>

#include "check.h"

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };
struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *);
static int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *);
static void *(*alloc_buf)(struct ibv_pd *, size_t, void **);
static void (*free_buf)(void *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int);
static int (*export_buf_dmabuf_fd)(void *);
static void *(*create_comp_cntr)(struct ibv_context *, void *);
static const char *(*wr_opcode_str)(int);

static void attributes(struct ibv_pd *pd)
{
	static char memory[8192];
	struct mr_init_attr attr = { .length = 100, .access = IBV_ACCESS_LOCAL_WRITE, .addr = memory + 7 };
	struct ibv_mr *mr;
	NONE(reg_mr_ex(pd, NULL), EINVAL);
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = ADDR | DMAH;
	NONE(reg_mr_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = 1 << 20;
	NONE(reg_mr_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = ADDR | FD_OFFSET;
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = FD | FD_OFFSET;
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = FD | FD_OFFSET | IOVA;
	NONE(reg_mr_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = ADDR;
	NONE(reg_mr_ex(NULL, &attr), EINVAL);
	MADE(mr, reg_mr_ex(pd, &attr));
	CODE(mr->addr == memory + 7 && mr->length == 100 && mr->pd == pd, 1);
	CODE(ibv_dereg_mr(mr), 0);
	attr.comp_mask |= IOVA;
	attr.iova = 4096;
	MADE(mr, reg_mr_ex(pd, &attr));
	CODE(ibv_dereg_mr(mr), 0);
}

static void buffers(struct ibv_pd *pd, struct ibv_pd *other)
{
	struct mr_init_attr attr = { .length = 5000, .comp_mask = ADDR | BUF };
	struct ibv_mr *mr;
	char *addr;
	void *buf;
	NONE(alloc_buf(NULL, 100, &buf), EINVAL);
	NONE(alloc_buf(pd, 100, NULL), EINVAL);
	NONE(alloc_buf(pd, SIZE_MAX / 2, &buf), ENOMEM);
	MADE(addr, alloc_buf(pd, 5000, &buf));
	CODE((uintptr_t)addr % 4096, 0);
	memset(addr, 1, 5000);
	NONE(reg_buf_mr(pd, NULL, addr, 5000, 0), EINVAL);
	NONE(reg_buf_mr(other, buf, addr, 5000, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, addr, 5001, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, addr - 1, 10, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, addr + 5001, 0, 0), EINVAL);
	NONE(reg_buf_mr(pd, buf, addr + 10, SIZE_MAX, 0), EINVAL);
	MADE(mr, reg_buf_mr(pd, buf, addr + 1000, 4000, IBV_ACCESS_LOCAL_WRITE));
	CODE(mr->addr == addr + 1000 && mr->length == 4000, 1);
	CODE(ibv_dereg_mr(mr), 0);
	attr.addr = addr;
	attr.buf = buf;
	MADE(mr, reg_mr_ex(pd, &attr));
	CODE(ibv_dereg_mr(mr), 0);
	attr.length = 5001;
	NONE(reg_mr_ex(pd, &attr), EINVAL);
	errno = 0;
	CODE(export_buf_dmabuf_fd(buf), -1);
	CODE(errno, ENODATA);
	free_buf(buf);
	free_buf(NULL);
}

static void *found(const char *name, const char *version)
{
	void *call;
	MADE(call, dlvsym(RTLD_DEFAULT, name, version));
	return call;
}

int main(void)
{
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd, *other;
	uint64_t speed = 0;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	MADE(pd, ibv_alloc_pd(ctx));
	MADE(other, ibv_alloc_pd(ctx));
	reg_mr_ex = found("ibv_reg_mr_ex", "IBVERBS_1.15");
	query_port_speed = found("ibv_query_port_speed", "IBVERBS_1.16");
	alloc_buf = found("ibv_alloc_buf", "IBVERBS_1.17");
	free_buf = found("ibv_free_buf", "IBVERBS_1.17");
	reg_buf_mr = found("ibv_reg_buf_mr", "IBVERBS_1.17");
	export_buf_dmabuf_fd = found("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	create_comp_cntr = found("ibv_create_comp_cntr", "IBVERBS_1.18");
	wr_opcode_str = found("ibv_wr_opcode_str", "IBVERBS_PRIVATE_59");

	attributes(pd);
	buffers(pd, other);
	CODE(query_port_speed(ctx, 2, &speed), EINVAL);
	CODE(query_port_speed(ctx, 1, NULL), EINVAL);
	CODE(query_port_speed(ctx, 1, &speed), 0);
	CODE(speed, 1000);
	NONE(create_comp_cntr(ctx, NULL), EOPNOTSUPP);
	CODE(strcmp(wr_opcode_str(IBV_WR_SEND_WITH_INV), "send-with-inv"), 0);
	CODE(strcmp(wr_opcode_str(15), "atomic-write"), 0);
	CODE(strcmp(wr_opcode_str(12), "unknown"), 0);
	CODE(strcmp(wr_opcode_str(-1), "unknown"), 0);

	CODE(ibv_dealloc_pd(other), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(ctx), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
