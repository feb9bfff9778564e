/*
 * The guest's half of the interoperability table: a verbs program that does what the host program
 * says. It reads one command a line and answers each with one line, "ok …" or "error …".
 *
 *	about                                       ok KERNEL DEVICE GID MTU ADDR LKEY RKEY
 *	fill OFFSET LENGTH SEED                     ok
 *	check OFFSET LENGTH SEED                    ok FIRST-DIFFERENCE (-1: none)
 *	mixed OFFSET LENGTH SEED SEED               ok FIRST-OF-NEITHER (-1: none)
 *	word OFFSET                                 ok VALUE
 *	qp TYPE                                     ok ID QPN
 *	connect ID MTU QPN GID RQ_PSN SQ_PSN TIMEOUT RETRY RNR_RETRY RNR_TIMER
 *	destroy ID                                  ok
 *	window ID OFFSET LENGTH                     ok RKEY
 *	recv ID WR_ID OFFSET LENGTH                 ok
 *	send ID WR_ID OP OFFSET LENGTH ADDR RKEY ARG SWAP QPN
 *	poll ID COUNT MILLISECONDS                  ok WR_ID,STATUS,OPCODE,LENGTH,IMM,FLAGS …
 *	state ID                                    ok STATE
 *	quit                                        ok
 *
 * Numbers are decimal, or hexadecimal after 0x.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>

#define MEMORY (4u << 20)
#define QPS 64
#define DEPTH 256
#define QKEY 0x1ee7
#define WORDS 16
/* The kernel's number for the same flag, which rxe lets through (rxe_resp.c, do_complete). */
#define KERNEL_WC_WITH_INVALIDATE 4
#define ALL_ACCESS                                                                               \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |             \
	 IBV_ACCESS_REMOTE_ATOMIC)

struct endpoint {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;
static int gid_index = -1;
static union ibv_gid gid;
static struct endpoint endpoints[QPS];

__attribute__((format(printf, 1, 2))) static void refuse(const char *format, ...)
{
	va_list arguments;

	printf("error ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

/* The bytes that both ends know: byte `at` of the pattern of a seed. */
static uint8_t pattern(uint32_t at, uint32_t seed)
{
	return (uint8_t)((at ^ (at >> 8) ^ (at >> 16) * 53u) * 167u + seed * 59u + 13u);
}

static bool open_device(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_port_attr port;

	for (int i = 0; list && i < count; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!context || ibv_query_port(context, 1, &port))
		return false;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		static const uint8_t v4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(gid.raw, v4, sizeof(v4))) {
			gid_index = i;
			break;
		}
	}
	memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pd = ibv_alloc_pd(context);
	if (gid_index < 0 || memory == MAP_FAILED || !pd)
		return false;
	mr = ibv_reg_mr(pd, memory, MEMORY, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	return mr != NULL;
}

static void about(void)
{
	struct utsname name;
	struct ibv_port_attr port;

	uname(&name);
	ibv_query_port(context, 1, &port);
	printf("ok %s %s ", name.release, ibv_get_device_name(context->device));
	for (int i = 0; i < 16; i++)
		printf("%02x", gid.raw[i]);
	printf(" %u 0x%" PRIx64 " 0x%x 0x%x\n", 128u << port.active_mtu, (uint64_t)(uintptr_t)memory,
	       mr->lkey, mr->rkey);
}

/* An offset and a length within the memory. */
static bool within(uint64_t offset, uint64_t length)
{
	if (offset <= MEMORY && length <= MEMORY - offset)
		return true;
	refuse("%" PRIu64 " bytes at %" PRIu64 " are not within %u", length, offset, MEMORY);
	return false;
}

static struct endpoint *endpoint(uint64_t id)
{
	if (id < QPS && endpoints[id].qp)
		return &endpoints[id];
	refuse("no QP %" PRIu64, id);
	return NULL;
}

static void create(const char *type)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	int id = 0;

	while (id < QPS && endpoints[id].qp)
		id++;
	if (id == QPS)
		return refuse("all %d QPs are in use", QPS);
	init.qp_type = !strcmp(type, "rc") ? IBV_QPT_RC : !strcmp(type, "uc") ? IBV_QPT_UC : IBV_QPT_UD;
	if (init.qp_type == IBV_QPT_UD) {
		mask |= IBV_QP_QKEY;
	} else {
		mask |= IBV_QP_ACCESS_FLAGS;
		attr.qp_access_flags = ALL_ACCESS;
	}
	struct endpoint *e = &endpoints[id];
	e->cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	if (!e->cq)
		return refuse("ibv_create_cq: %s", strerror(errno));
	init.send_cq = init.recv_cq = e->cq;
	e->qp = ibv_create_qp(pd, &init);
	if (!e->qp) {
		refuse("ibv_create_qp: %s", strerror(errno));
		ibv_destroy_cq(e->cq);
		return;
	}
	int error = ibv_modify_qp(e->qp, &attr, mask);
	if (error)
		return refuse("ibv_modify_qp to INIT: %s", strerror(error));
	printf("ok %d 0x%x\n", id, e->qp->qp_num);
}

static bool parse_gid(const char *text, union ibv_gid *to)
{
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return false;
		to->raw[i] = (uint8_t)byte;
	}
	return true;
}

static enum ibv_mtu mtu_code(uint64_t bytes)
{
	enum ibv_mtu code = IBV_MTU_256;

	while (code < IBV_MTU_4096 && (128u << code) < bytes)
		code++;
	return code;
}

static void connect_to(struct endpoint *e, char **word, const uint64_t *number)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_code(number[2]),
		.dest_qp_num = (uint32_t)number[3],
		.rq_psn = (uint32_t)number[5],
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = (uint8_t)number[10],
		.ah_attr = {.is_global = 1, .port_num = 1},
	};
	int mask = IBV_QP_STATE;
	int error;

	attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	if (!parse_gid(word[4], &attr.ah_attr.grh.dgid))
		return refuse("no GID: %s", word[4]);
	if (e->qp->qp_type == IBV_QPT_UD) {
		e->ah = ibv_create_ah(pd, &attr.ah_attr);
		if (!e->ah)
			return refuse("ibv_create_ah: %s", strerror(errno));
	} else {
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (e->qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	error = ibv_modify_qp(e->qp, &attr, mask);
	if (error)
		return refuse("ibv_modify_qp to RTR: %s", strerror(error));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = (uint32_t)number[6];
	attr.timeout = (uint8_t)number[7];
	attr.retry_cnt = (uint8_t)number[8];
	attr.rnr_retry = (uint8_t)number[9];
	attr.max_rd_atomic = 16;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (e->qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	error = ibv_modify_qp(e->qp, &attr, mask);
	if (error)
		return refuse("ibv_modify_qp to RTS: %s", strerror(error));
	printf("ok\n");
}

static void destroy(struct endpoint *e)
{
	int error = ibv_destroy_qp(e->qp);

	if (!error && e->mw)
		error = ibv_dealloc_mw(e->mw);
	if (!error && e->ah)
		error = ibv_destroy_ah(e->ah);
	if (!error)
		error = ibv_destroy_cq(e->cq);
	memset(e, 0, sizeof(*e));
	if (error)
		return refuse("destroying a QP: %s", strerror(error));
	printf("ok\n");
}

static void post_recv(struct endpoint *e, const uint64_t *number)
{
	struct ibv_sge sge = {(uintptr_t)memory + number[3], (uint32_t)number[4], mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = number[2], .sg_list = &sge, .num_sge = 1}, *bad;
	int error = ibv_post_recv(e->qp, &wr, &bad);

	if (error)
		return refuse("ibv_post_recv: %s", strerror(error));
	printf("ok\n");
}

static bool opcode(const char *name, enum ibv_wr_opcode *code)
{
	static const struct {
		const char *name;
		enum ibv_wr_opcode code;
	} names[] = {
		{"send", IBV_WR_SEND},
		{"send-imm", IBV_WR_SEND_WITH_IMM},
		{"send-inv", IBV_WR_SEND_WITH_INV},
		{"write", IBV_WR_RDMA_WRITE},
		{"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM},
		{"read", IBV_WR_RDMA_READ},
		{"cmp-swp", IBV_WR_ATOMIC_CMP_AND_SWP},
		{"fetch-add", IBV_WR_ATOMIC_FETCH_AND_ADD},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!strcmp(names[i].name, name)) {
			*code = names[i].code;
			return true;
		}
	return false;
}

static void post_send(struct endpoint *e, char **word, const uint64_t *number)
{
	struct ibv_sge sge = {(uintptr_t)memory + number[4], (uint32_t)number[5], mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = number[2], .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
	int error;

	if (!opcode(word[3], &wr.opcode))
		return refuse("no operation %s", word[3]);
	switch (wr.opcode) {
	case IBV_WR_SEND_WITH_INV:
		wr.invalidate_rkey = (uint32_t)number[8];
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		wr.wr.atomic.remote_addr = number[6];
		wr.wr.atomic.rkey = (uint32_t)number[7];
		wr.wr.atomic.compare_add = number[8];
		wr.wr.atomic.swap = number[9];
		break;
	default:
		wr.wr.rdma.remote_addr = number[6];
		wr.wr.rdma.rkey = (uint32_t)number[7];
		wr.imm_data = htonl((uint32_t)number[8]);
	}
	if (e->ah) {
		wr.wr.ud.ah = e->ah;
		wr.wr.ud.remote_qpn = (uint32_t)number[10];
		wr.wr.ud.remote_qkey = QKEY;
	}
	error = ibv_post_send(e->qp, &wr, &bad);
	if (error)
		return refuse("ibv_post_send: %s", strerror(error));
	printf("ok\n");
}

static uint64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Waits for so many completions, polling so that the processor is left to the device in between. */
static int collect(struct endpoint *e, struct ibv_wc *wcs, int count, uint64_t wait)
{
	uint64_t end = milliseconds() + wait;
	int found = 0;

	for (unsigned round = 0;; round++) {
		int more = ibv_poll_cq(e->cq, count - found, wcs + found);

		if (more < 0)
			return more;
		found += more;
		if (found == count || milliseconds() >= end)
			return found;
		poll(NULL, 0, round < 8 ? 0 : 1);
	}
}

static void poll_cq(struct endpoint *e, const uint64_t *number)
{
	struct ibv_wc wcs[DEPTH];
	int count = number[2] < DEPTH ? (int)number[2] : DEPTH;
	int found = collect(e, wcs, count, number[3]);

	if (found < 0)
		return refuse("ibv_poll_cq: %d", found);
	printf("ok");
	for (int i = 0; i < found; i++) {
		bool inv = wcs[i].wc_flags & (IBV_WC_WITH_INV | KERNEL_WC_WITH_INVALIDATE);

		printf(" %" PRIu64 ",%d,%d,%u,0x%x,%u", wcs[i].wr_id, wcs[i].status, wcs[i].opcode,
		       wcs[i].byte_len, inv ? wcs[i].invalidated_rkey : ntohl(wcs[i].imm_data),
		       wcs[i].wc_flags);
	}
	printf("\n");
}

/* Opens a part of the memory through a window of this QP, in place of the one it had. */
static void window(struct endpoint *e, const uint64_t *number)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	int error;

	if (e->mw) {
		ibv_dealloc_mw(e->mw);
		e->mw = NULL;
	}
	e->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!e->mw)
		return refuse("ibv_alloc_mw: %s", strerror(errno));
	wr.bind_mw.mw = e->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(e->mw->rkey);
	wr.bind_mw.bind_info.mr = mr;
	wr.bind_mw.bind_info.addr = (uintptr_t)memory + number[2];
	wr.bind_mw.bind_info.length = number[3];
	wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	error = ibv_post_send(e->qp, &wr, &bad);
	if (error)
		return refuse("ibv_post_send of a bind: %s", strerror(error));
	if (collect(e, &wc, 1, 1000) != 1 || wc.status != IBV_WC_SUCCESS)
		return refuse("the bind of a window did not complete");
	printf("ok 0x%x\n", wr.bind_mw.rkey);
}

static void state(struct endpoint *e)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init))
		return refuse("ibv_query_qp: %s", strerror(errno));
	printf("ok %d\n", attr.qp_state);
}

static void fill(const uint64_t *number)
{
	for (uint32_t i = 0; i < number[2]; i++)
		memory[number[1] + i] = pattern(i, (uint32_t)number[3]);
	printf("ok\n");
}

static void check(const uint64_t *number)
{
	for (uint32_t i = 0; i < number[2]; i++)
		if (memory[number[1] + i] != pattern(i, (uint32_t)number[3])) {
			printf("ok %u\n", i);
			return;
		}
	printf("ok -1\n");
}

static void mixed(const uint64_t *number)
{
	for (uint32_t i = 0; i < number[2]; i++) {
		uint8_t byte = memory[number[1] + i];

		if (byte != pattern(i, (uint32_t)number[3]) && byte != pattern(i, (uint32_t)number[4])) {
			printf("ok %u\n", i);
			return;
		}
	}
	printf("ok -1\n");
}

static void word_at(uint64_t offset)
{
	uint64_t value;

	memcpy(&value, memory + offset, sizeof(value));
	printf("ok %" PRIu64 "\n", value);
}

/* Does one command; false when it was the last. */
static bool command(char **word, int words)
{
	static const struct {
		const char *name;
		int words;
		bool takes_qp;
	} commands[] = {
		{"about", 1, false},  {"fill", 4, false}, {"check", 4, false}, {"word", 2, false},
		{"mixed", 5, false},
		{"qp", 2, false},     {"connect", 11, true}, {"destroy", 2, true}, {"window", 4, true},
		{"recv", 5, true},    {"send", 11, true}, {"poll", 4, true},  {"state", 2, true},
		{"quit", 1, false},
	};
	uint64_t number[WORDS] = {0};
	struct endpoint *e = NULL;
	size_t i = 0;

	while (i < sizeof(commands) / sizeof(*commands) && strcmp(commands[i].name, word[0]))
		i++;
	if (i == sizeof(commands) / sizeof(*commands) || commands[i].words != words) {
		refuse("not a command: %s with %d words", word[0], words);
		return true;
	}
	for (int at = 1; at < words; at++)
		number[at] = strtoull(word[at], NULL, 0);
	if (commands[i].takes_qp && !(e = endpoint(number[1])))
		return true;
	const char *name = commands[i].name;
	if (!strcmp(name, "quit")) {
		printf("ok\n");
		return false;
	}
	if (!strcmp(name, "about"))
		about();
	else if (!strcmp(name, "fill"))
		within(number[1], number[2]) ? fill(number) : (void)0;
	else if (!strcmp(name, "check"))
		within(number[1], number[2]) ? check(number) : (void)0;
	else if (!strcmp(name, "mixed"))
		within(number[1], number[2]) ? mixed(number) : (void)0;
	else if (!strcmp(name, "word"))
		within(number[1], 8) ? word_at(number[1]) : (void)0;
	else if (!strcmp(name, "qp"))
		create(word[1]);
	else if (!strcmp(name, "connect"))
		connect_to(e, word, number);
	else if (!strcmp(name, "destroy"))
		destroy(e);
	else if (!strcmp(name, "window"))
		window(e, number);
	else if (!strcmp(name, "recv"))
		post_recv(e, number);
	else if (!strcmp(name, "send"))
		post_send(e, word, number);
	else if (!strcmp(name, "poll"))
		poll_cq(e, number);
	else
		state(e);
	return true;
}

int main(int argc, char **argv)
{
	char line[1024];
	bool more = true;

	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	if (!open_device(argc > 1 ? argv[1] : "rxe0")) {
		refuse("cannot open %s: %s", argc > 1 ? argv[1] : "rxe0", strerror(errno));
		return 1;
	}
	while (more && fgets(line, sizeof(line), stdin)) {
		char *word[WORDS];
		int words = 0;

		for (char *w = strtok(line, " \n"); w && words < WORDS; w = strtok(NULL, " \n"))
			word[words++] = w;
		if (words > 0)
			more = command(word, words);
		fflush(stdout);
	}
	return 0;
}
