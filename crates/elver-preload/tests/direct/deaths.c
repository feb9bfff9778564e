/* A survivor with queue pairs to a healthy process, and to victims that come one after the other: each pair is initiator
 * and target at both ends, and each victim is killed at a moment that is drawn, while it opens its device, meets, moves
 * data, takes memory back or sleeps. What it had been told was done is done, once; nothing else is; the survivor moves
 * the right data to and from the healthy one all the while, and keeps nothing of the dead.
 *
 * deaths VICTIMS direct|packets SEED: says what it saw, and exits with 0 when that was right. */
#define _GNU_SOURCE
#include <dirent.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/draw.h"

enum { QPS = 3, FIELD = 80 << 10, MESSAGE = 8 << 10, RECEIVES = 8, MOST = 4, GUARD = 64, SCRATCH = 64 << 10 };
/* Seconds. What takes longer does not end. */
enum { PATIENCE = 60 };
/* Mappings that the C library may have made for itself meanwhile, in all rounds together. */
enum { MAPPINGS = 16 };
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* When a victim is to be killed, and by whom: by a timer of the kernel's, which knows no boundaries of calls. */
enum phase { OPENS, MEETS, MOVES, TAKES_BACK, SLEEPS, PHASES };
enum killer { TIMER, SURVIVOR, THIRD, KILLERS };
static const char *const phases[] = { "opens", "meets", "moves data", "takes back", "sleeps" };
static const char *const killers[] = { "a timer", "the survivor", "a third process" };

/* Of a queue pair's end: the memory that its peer reaches, and its own operations'. */
struct slot {
	unsigned char before[GUARD], field[FIELD], between[GUARD], fixed[FIELD];
	uint64_t counter;
	unsigned char after[GUARD], out[FIELD + MOST * MESSAGE], in[FIELD];
	uint64_t found;
	unsigned char inbox[RECEIVES][MESSAGE];
};

/* What the end of a queue pair tells, and what it has done to its peer: before it does it, and when it was told that it is
 * done. The write that is under way has a length. */
struct side {
	uint64_t addr;
	uint32_t rkey, qpn;
	_Atomic uint64_t sent_posted, sent_done, adds_posted, adds_done;
	_Atomic uint32_t at, length;
	unsigned char value, model[FIELD];
};

struct pair {
	struct side ends[2];
};

/* What all processes see. What is told of a victim is told with its number. */
static struct told {
	union ibv_gid healthy, survivor, victim;
	_Atomic int opened, healthy_opened, ready, connected[2], dead, ended, stop, quiet;
	_Atomic int may_be_killed;
	_Atomic pid_t pid;
	struct pair healthy_pairs[QPS], victim_pairs[QPS];
} *told;

struct header {
	uint64_t number;
	uint32_t length;
};

static struct link {
	uint32_t id;
	int salt, other_salt, failed, ends;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct slot *slot;
	struct side *own, *other;
	/* WRs so far, and their completions; the kinds of the last ones. */
	uint32_t posted, done, receives, received;
	uint64_t messages;
	int kinds[MOST];
	uint32_t at, length;
} healthy[QPS], doomed[QPS];

static const char *who = "parent";
static int round_now;
static uint64_t operations;
static uint32_t ids;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static unsigned char *scratch;

#define MUST(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s, victim %d, line %d: not so: %s\n", who, round_now, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static int one_in(int n)
{
	return draw() % n == 0;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void *memory(size_t size)
{
	void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(start != MAP_FAILED);
	return start;
}

/* Nanoseconds of any order of magnitude below 1 << bits. */
static uint64_t some_time(int bits)
{
	return draw() % (2ull << draw() % bits);
}

static void spin(uint64_t ns)
{
	double end = seconds() + ns / 1e9;
	while (seconds() < end)
		;
}

static void open_device(union ibv_gid *gid)
{
	struct ibv_device **all = ibv_get_device_list(NULL);
	MUST(all && all[0]);
	MUST((ctx = ibv_open_device(all[0])));
	ibv_free_device_list(all);
	MUST((pd = ibv_alloc_pd(ctx)));
	MUST((channel = ibv_create_comp_channel(ctx)));
	MUST((cq = ibv_create_cq(ctx, 512, NULL, channel, 0)));
	MUST(!ibv_query_gid(ctx, 1, 0, gid));
	scratch = memory(SCRATCH);
}

static void post_receive(struct link *link)
{
	struct ibv_sge sge = { (uintptr_t)link->slot->inbox[link->receives % RECEIVES], MESSAGE, link->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 1ull << 63 | (uint64_t)link->id << 32 | link->receives, .sg_list = &sge,
		.num_sge = 1 };
	link->receives++;
	MUST(!ibv_post_recv(link->qp, &wr, &bad));
}

/* A queue pair in INIT with its memory, which its side tells. */
static void prepare(struct link *link, struct slot *slot, struct side *own, struct side *other, int salt, int other_salt)
{
	*link = (struct link){ .id = ++ids, .slot = slot, .own = own, .other = other, .salt = salt,
		.other_salt = other_salt };
	memset(slot, 0, sizeof *slot);
	memset(slot->before, 0xa5, GUARD);
	memset(slot->between, 0xa5, GUARD);
	memset(slot->after, 0xa5, GUARD);
	for (int at = 0; at < FIELD; at++)
		slot->fixed[at] = at * 7 + salt;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { MOST, RECEIVES, 2, 1, 64 } };
	MUST((link->qp = ibv_create_qp(pd, &init)));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	MUST(!ibv_modify_qp(link->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	MUST((link->mr = ibv_reg_mr(pd, slot, sizeof *slot, RIGHTS)));
	for (int n = 0; n < RECEIVES; n++)
		post_receive(link);
	own->addr = (uintptr_t)slot;
	own->rkey = link->mr->rkey;
	own->qpn = link->qp->qp_num;
}

static void join(struct link *link, const union ibv_gid *gid)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = link->other->qpn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 1 } } };
	MUST(!ibv_modify_qp(link->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
		| IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	/* 268 ms, eight times: others may have the processors. */
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 4 };
	MUST(!ibv_modify_qp(link->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
		| IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

enum kind { WRITES, READS, READS_FIXED, SENDS, ADDS, SWAPS, WRITES_AND_SENDS, KINDS };

static uint64_t remote(const struct link *link, size_t offset)
{
	return link->other->addr + offset;
}

static void message(struct link *link, struct ibv_sge *sge, unsigned char *start)
{
	struct header header = { atomic_fetch_add(&link->own->sent_posted, 1), 0 };
	header.length = sizeof header + draw() % (one_in(8) ? MESSAGE - sizeof header : 200);
	memset(start, header.number * 37 + link->salt, header.length);
	memcpy(start, &header, sizeof header);
	*sge = (struct ibv_sge){ (uintptr_t)start, header.length, link->mr->lkey };
}

/* Begins an operation, of some WRs. */
static void act_so(struct link *link, enum kind kind)
{
	struct slot *slot = link->slot;
	struct side *own = link->own;
	struct ibv_sge sges[MOST];
	struct ibv_send_wr wrs[MOST] = { 0 }, *bad;
	int kinds[MOST] = { kind }, count = 1;
	link->length = 1 + draw() % (one_in(12) ? FIELD : 400);
	link->at = draw() % (FIELD - link->length + 1);
	uint32_t rkey = link->other->rkey;
	if (kind == WRITES || kind == WRITES_AND_SENDS) {
		own->value = draw();
		memset(slot->out, own->value, link->length);
		atomic_store(&own->at, link->at);
		atomic_store(&own->length, link->length);
		sges[0] = (struct ibv_sge){ (uintptr_t)slot->out, link->length, link->mr->lkey };
		wrs[0].opcode = IBV_WR_RDMA_WRITE;
		wrs[0].wr.rdma.remote_addr = remote(link, offsetof(struct slot, field) + link->at);
		wrs[0].wr.rdma.rkey = rkey;
		wrs[0].send_flags = link->length <= 64 && one_in(2) ? IBV_SEND_INLINE : 0;
		if (kind == WRITES_AND_SENDS) {
			kinds[0] = WRITES;
			kinds[count] = SENDS;
			wrs[count].opcode = IBV_WR_SEND;
			message(link, &sges[count], slot->out + FIELD);
			count++;
		}
	} else if (kind == READS || kind == READS_FIXED) {
		size_t from = kind == READS ? offsetof(struct slot, field) : offsetof(struct slot, fixed);
		memset(slot->in, 0x5a, link->length);
		sges[0] = (struct ibv_sge){ (uintptr_t)slot->in, link->length, link->mr->lkey };
		wrs[0].opcode = IBV_WR_RDMA_READ;
		wrs[0].wr.rdma.remote_addr = remote(link, from + link->at);
		wrs[0].wr.rdma.rkey = rkey;
	} else if (kind == SENDS) {
		count = 1 + draw() % MOST;
		for (int n = 0; n < count; n++) {
			kinds[n] = SENDS;
			wrs[n].opcode = IBV_WR_SEND;
			message(link, &sges[n], slot->out + FIELD + n * MESSAGE);
		}
	} else {
		uint64_t before = atomic_fetch_add(&own->adds_posted, 1);
		slot->found = ~0ull;
		sges[0] = (struct ibv_sge){ (uintptr_t)&slot->found, 8, link->mr->lkey };
		wrs[0].opcode = kind == ADDS ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wrs[0].wr.atomic.remote_addr = remote(link, offsetof(struct slot, counter));
		wrs[0].wr.atomic.rkey = rkey;
		wrs[0].wr.atomic.compare_add = kind == ADDS ? 1 : before;
		wrs[0].wr.atomic.swap = before + 1;
	}
	for (int n = 0; n < count; n++) {
		link->kinds[(link->posted + n) % MOST] = kinds[n];
		wrs[n].wr_id = (uint64_t)link->id << 32 | (link->posted + n);
		wrs[n].sg_list = &sges[n];
		wrs[n].num_sge = 1;
		wrs[n].next = n + 1 < count ? &wrs[n + 1] : NULL;
	}
	link->posted += count;
	MUST(!ibv_post_send(link->qp, wrs, &bad));
}

static void act(struct link *link)
{
	act_so(link, draw() % KINDS);
}

/* A WR has ended well. */
static void has_done(struct link *link, enum kind kind)
{
	struct side *own = link->own;
	operations++;
	switch (kind) {
	case WRITES:
		memset(own->model + link->at, own->value, link->length);
		atomic_store(&own->length, 0);
		break;
	case READS:
		MUST(!memcmp(link->slot->in, own->model + link->at, link->length));
		break;
	case READS_FIXED:
		for (uint32_t n = 0; n < link->length; n++)
			MUST(link->slot->in[n] == (unsigned char)((link->at + n) * 7 + link->other_salt));
		break;
	case SENDS:
		atomic_fetch_add(&own->sent_done, 1);
		break;
	default:
		MUST(link->slot->found == atomic_fetch_add(&own->adds_done, 1));
	}
}

static void has_received(struct link *link, const struct ibv_wc *wc)
{
	const unsigned char *start = link->slot->inbox[link->received % RECEIVES];
	struct header header;
	memcpy(&header, start, sizeof header);
	MUST(wc->opcode == IBV_WC_RECV && header.number == link->messages && header.length == wc->byte_len);
	for (uint32_t at = sizeof header; at < header.length; at++)
		MUST(start[at] == (unsigned char)(header.number * 37 + link->other_salt));
	MUST(link->messages < atomic_load(&link->other->sent_posted));
	link->messages++;
}

static struct link *find(uint32_t id)
{
	for (int n = 0; n < QPS; n++) {
		if (healthy[n].id == id)
			return &healthy[n];
		if (doomed[n].id == id)
			return &doomed[n];
	}
	return NULL;
}

static int is_of_healthy(const struct link *link)
{
	return link >= healthy && link < healthy + QPS;
}

/* Each completion is of a WR that has had none, in order. */
static void take(const struct ibv_wc *wc)
{
	struct link *link = find(wc->wr_id >> 32 & 0x7fffffff);
	uint32_t number = wc->wr_id;
	MUST(link && wc->qp_num == link->qp->qp_num);
	if (wc->status != IBV_WC_SUCCESS) {
		if (!(wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_WR_FLUSH_ERR))
			fprintf(stderr, "%s, victim %d: %s\n", who, round_now, ibv_wc_status_str(wc->status));
		MUST(wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_WR_FLUSH_ERR);
		/* Of the dead alone. */
		MUST(*who == 's' && !is_of_healthy(link));
		link->failed = 1;
	}
	if (wc->wr_id >> 63) {
		MUST(number == link->received && number < link->receives);
		if (wc->status == IBV_WC_SUCCESS)
			has_received(link, wc);
		link->received++;
		if (!link->failed && !link->ends)
			post_receive(link);
	} else {
		MUST(number == link->done && number < link->posted);
		link->done++;
		if (wc->status == IBV_WC_SUCCESS)
			has_done(link, link->kinds[number % MOST]);
	}
}

static int look(void)
{
	struct ibv_wc wcs[64];
	int found = ibv_poll_cq(cq, 64, wcs);
	MUST(found >= 0);
	for (int n = 0; n < found; n++)
		take(&wcs[n]);
	return found;
}

/* Sleeps until a completion comes; some milliseconds at most where nobody else wakes. */
static void sleep_until_told(int bounded)
{
	MUST(!ibv_req_notify_cq(cq, 0));
	if (look())
		return;
	struct pollfd events = { channel->fd, POLLIN, 0 };
	if (bounded && poll(&events, 1, 5) == 0)
		return;
	struct ibv_cq *found;
	void *context;
	MUST(!ibv_get_cq_event(channel, &found, &context) && found == cq);
	ibv_ack_cq_events(cq, 1);
}

static void take_memory_back(void)
{
	size_t at = draw() % 8 * 4096, length = 1 + draw() % (SCRATCH - at);
	struct ibv_mr *mr = ibv_reg_mr(pd, scratch + at, length, RIGHTS);
	MUST(mr);
	if (one_in(3))
		MUST(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	MUST(!ibv_dereg_mr(mr));
}

static void drive(struct link *links)
{
	for (int n = 0; n < QPS; n++) {
		struct link *link = &links[n];
		if (!link->failed && link->done == link->posted && !one_in(4))
			act(link);
	}
}

static void drive_healthy(int sleeps)
{
	drive(healthy);
	if (!look()) {
		if (sleeps && one_in(4))
			sleep_until_told(1);
		else
			sched_yield();
	}
}

/* All that the healthy one and the survivor have begun has ended. */
static void finish(void)
{
	double end = seconds() + PATIENCE;
	for (int n = 0; n < QPS; n++)
		while (healthy[n].done != healthy[n].posted) {
			look();
			MUST(seconds() < end);
		}
}

/* What a peer has done in this process's memory: what it was told is done, and what it had begun. All messages that it was
 * told have arrived have come out, if the queue pair was not destroyed before. */
static void check_target(const struct link *link, int all)
{
	struct side *other = link->other;
	struct slot *slot = link->slot;
	uint32_t at = atomic_load(&other->at), length = atomic_load(&other->length);
	for (uint32_t n = 0; n < FIELD; n++) {
		int writes = n >= at && n - at < length;
		if (!(slot->field[n] == other->model[n] || (writes && slot->field[n] == other->value))) {
			fprintf(stderr, "%s, victim %d: byte %u is %u, and was written to be %u; %u at %u to be %u\n", who, round_now,
				n, slot->field[n], other->model[n], length, at, other->value);
			exit(1);
		}
		MUST(slot->fixed[n] == (unsigned char)(n * 7 + link->salt));
	}
	for (int n = 0; n < GUARD; n++)
		MUST(slot->before[n] == 0xa5 && slot->between[n] == 0xa5 && slot->after[n] == 0xa5);
	MUST(slot->counter >= atomic_load(&other->adds_done) && slot->counter <= atomic_load(&other->adds_posted));
	MUST(link->messages <= atomic_load(&other->sent_posted));
	MUST(!all || link->messages >= atomic_load(&other->sent_done));
}

/* Descriptors of this process, or its mappings: all, or those that it has of others or for them. */
static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	MUST(all);
	int count = 0;
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

static int mappings(const char *name)
{
	FILE *all = fopen("/proc/self/maps", "r");
	MUST(all);
	int count = 0;
	char *line = NULL;
	size_t size = 0;
	while (getline(&line, &size, all) > 0)
		count += strstr(line, name) != NULL;
	free(line);
	fclose(all);
	return count;
}

static int is_dead(void)
{
	return atomic_load(&told->dead) >= round_now;
}

/* Whoever had the address before: READs of one who lives are complete when they were posted. */
static void moves_itself(struct link *link)
{
	double end = seconds() + PATIENCE;
	while (link->done != link->posted) {
		look();
		MUST(seconds() < end);
	}
	for (int n = 0; n < 20; n++) {
		act_so(link, READS_FIXED);
		look();
		MUST(link->done == link->posted);
	}
}

/* The end of a queue pair to a dead process: as its retries find out, or as its owner ends it. */
static void end_link(struct link *link, struct slot *slot)
{
	/* To wait for all retries takes seconds: not often. */
	int way = one_in(24) ? 0 : 1 + draw() % 7, joined = atomic_load(&told->connected[0]) == round_now;
	double end = seconds() + PATIENCE;
	link->ends = 1;
	if (way == 0 && joined) {
		if (!link->failed && link->done == link->posted)
			act(link);
		while (!link->failed) {
			drive_healthy(1);
			MUST(seconds() < end);
			if (link->done == link->posted && !link->failed)
				act(link);
		}
	} else if (way < 5) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		MUST(!ibv_modify_qp(link->qp, &attr, IBV_QP_STATE));
	}
	int all = way < 5;
	while (all && (link->done != link->posted || link->received != link->receives)) {
		drive_healthy(0);
		MUST(seconds() < end);
	}
	MUST(!ibv_destroy_qp(link->qp));
	/* What comes of it now has no link. */
	uint32_t id = link->id;
	link->id = 0;
	check_target(link, all);
	MUST(!ibv_dereg_mr(link->mr));
	memset(slot, 0xee, sizeof *slot);
	MUST(!find(id));
}

/* Nothing is written to memory that was taken back. */
static void lies_still(const struct slot *slots)
{
	const unsigned char *bytes = (const void *)slots;
	for (size_t at = 0; at < QPS * sizeof *slots; at++)
		MUST(bytes[at] == 0xee);
}

/* One victim, from before its birth until nothing is left of it. */
static void survive_one(struct slot *slots, int direct)
{
	int connected = 0, connects_late = one_in(2);
	uint64_t patience = some_time(20);
	memset(told->victim_pairs, 0, sizeof told->victim_pairs);
	for (int n = 0; n < QPS; n++)
		prepare(&doomed[n], &slots[n], &told->victim_pairs[n].ends[0], &told->victim_pairs[n].ends[1],
			round_now, round_now + 100);
	atomic_store(&told->ready, round_now);
	double end = seconds() + 2 * PATIENCE;
	while (!is_dead()) {
		MUST(seconds() < end);
		int published = atomic_load(&told->opened) == round_now;
		/* Either asks the other first, or both at once. */
		if (!connected && published && (!connects_late || atomic_load(&told->connected[1]) == round_now)) {
			for (int n = 0; n < QPS; n++)
				join(&doomed[n], &told->victim);
			connected = 1;
			atomic_store(&told->connected[0], round_now);
		}
		if (connected && atomic_load(&told->connected[1]) == round_now)
			drive(doomed);
		if (atomic_load(&told->may_be_killed) == 1 + SURVIVOR) {
			for (int n = 0; direct && n < QPS; n++)
				moves_itself(&doomed[n]);
			drive(doomed);
			spin(patience);
			kill(atomic_load(&told->pid), SIGKILL);
			atomic_store(&told->may_be_killed, 0);
		}
		if (one_in(8))
			take_memory_back();
		drive_healthy(1);
	}
	for (int n = 0; n < QPS; n++)
		end_link(&doomed[n], &slots[n]);
}

static void survive(int victims, int direct)
{
	who = "survivor";
	open_device(&told->survivor);
	int own = mappings("memfd:elver-");
	for (int n = 0; n < QPS; n++)
		prepare(&healthy[n], memory(sizeof(struct slot)), &told->healthy_pairs[n].ends[0],
			&told->healthy_pairs[n].ends[1], 1, 2);
	atomic_store(&told->ready, 0);
	double end = seconds() + PATIENCE;
	while (atomic_load(&told->healthy_opened) < 1)
		MUST(seconds() < end && !usleep(100));
	for (int n = 0; n < QPS; n++)
		join(&healthy[n], &told->healthy);
	atomic_store(&told->connected[0], 0);
	while (atomic_load(&told->healthy_opened) < 2)
		MUST(seconds() < end && !usleep(100));
	struct slot *slots[2] = { memory(QPS * sizeof(struct slot)), memory(QPS * sizeof(struct slot)) };
	for (int n = 0; n < 2; n++)
		memset(slots[n], 0xee, QPS * sizeof(struct slot));
	for (uint64_t until = operations + 200; operations < until;)
		drive_healthy(1);
	int files = descriptors(), shared = mappings("memfd:elver-"), all = mappings("");
	MUST((shared > own) == direct);
	for (round_now = 1; round_now <= victims; round_now++) {
		uint64_t before = operations;
		survive_one(slots[round_now % 2], direct);
		while (operations < before + 50)
			drive_healthy(1);
		lies_still(slots[1 - round_now % 2]);
		/* The library's thread sees to that. The next one may come before, and have the address of the last. */
		int waits = round_now == victims || one_in(2);
		end = seconds() + PATIENCE;
		while (waits && (descriptors() != files || mappings("memfd:elver-") != shared)) {
			drive_healthy(1);
			if (seconds() > end)
				fprintf(stderr, "descriptors %d of %d, mappings %d of %d\n", descriptors(), files,
					mappings("memfd:elver-"), shared);
			MUST(seconds() < end);
		}
		atomic_store(&told->ended, round_now);
	}
	MUST(mappings("") <= all + MAPPINGS);
	finish();
	atomic_store(&told->quiet, 1);
	end = seconds() + PATIENCE;
	while (atomic_load(&told->quiet) < 2) {
		look();
		MUST(seconds() < end);
	}
	while (look())
		;
	for (int n = 0; n < QPS; n++) {
		MUST(atomic_load(&healthy[n].other->adds_done) == atomic_load(&healthy[n].other->adds_posted));
		MUST(healthy[n].messages == atomic_load(&healthy[n].other->sent_posted));
		check_target(&healthy[n], 1);
	}
	fprintf(stderr, "%lu operations of the survivor's\n", operations);
	exit(0);
}

static void stay_healthy(void)
{
	who = "healthy";
	open_device(&told->healthy);
	double end = seconds() + PATIENCE;
	while (atomic_load(&told->ready) < 0)
		MUST(seconds() < end && !usleep(100));
	for (int n = 0; n < QPS; n++)
		prepare(&healthy[n], memory(sizeof(struct slot)), &told->healthy_pairs[n].ends[1],
			&told->healthy_pairs[n].ends[0], 2, 1);
	atomic_store(&told->healthy_opened, 1);
	while (atomic_load(&told->connected[0]) < 0)
		MUST(seconds() < end && !usleep(100));
	for (int n = 0; n < QPS; n++)
		join(&healthy[n], &told->survivor);
	atomic_store(&told->healthy_opened, 2);
	while (!atomic_load(&told->quiet))
		drive_healthy(1);
	finish();
	atomic_store(&told->quiet, 2);
	/* Until its parent ends it. */
	while (!atomic_load(&told->stop))
		sleep_until_told(1);
	exit(0);
}

/* Has this process killed so many nanoseconds from now on, at whatever it does then. */
static void kill_soon(uint64_t ns)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
	timer_t timer;
	struct itimerspec when = { .it_value = { ns / 1000000000, ns % 1000000000 + 1 } };
	MUST(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	MUST(!timer_settime(timer, 0, &when, NULL));
}

static void be_killed(enum phase phase, enum killer killer)
{
	static const int bits[PHASES] = { 24, 22, 20, 20, 22 };
	if (killer == TIMER)
		kill_soon(some_time(bits[phase]));
	else
		atomic_store(&told->may_be_killed, 1 + killer);
}

static void be_a_victim(enum phase phase, enum killer killer, int direct)
{
	who = "victim";
	atomic_store(&told->pid, getpid());
	int connects_late = one_in(2);
	uint64_t operations_before = draw() % 150;
	/* The address of one that has just ended, as often as not: there are two. */
	char addresses[64];
	pid_t parent = getppid();
	snprintf(addresses, sizeof addresses, "127.40.%u.%u,127.41.%u.%u", parent >> 7 & 0xff, parent << 1 & 0xfe,
		parent >> 7 & 0xff, parent << 1 & 0xfe);
	if (one_in(2))
		setenv("ELVER_ADDRESS", addresses, 1);
	if (phase == OPENS)
		be_killed(phase, killer);
	open_device(&told->victim);
	while (atomic_load(&told->ready) != round_now)
		sched_yield();
	for (int n = 0; n < QPS; n++)
		prepare(&doomed[n], memory(sizeof(struct slot)), &told->victim_pairs[n].ends[1],
			&told->victim_pairs[n].ends[0], round_now + 100, round_now);
	atomic_store(&told->opened, round_now);
	double end = seconds() + 0.02;
	while (connects_late && atomic_load(&told->connected[0]) != round_now && seconds() < end)
		sched_yield();
	if (phase == MEETS)
		be_killed(phase, killer);
	for (int n = 0; n < QPS; n++)
		join(&doomed[n], &told->survivor);
	atomic_store(&told->connected[1], round_now);
	while (atomic_load(&told->connected[0]) != round_now)
		sched_yield();
	/* A table of its own, and three files of who was met. Where each asked the other, the two files of what comes to nothing
	 * are let go a moment later. */
	int wanted = direct ? 4 : 0, found;
	for (end = seconds() + PATIENCE; (found = mappings("memfd:elver-")) != wanted; sched_yield())
		if (seconds() > end) {
			fprintf(stderr, "victim %d has %d mappings of the library's, not %d\n", round_now, found, wanted);
			exit(1);
		}
	int told_to = phase <= MEETS;
	for (;;) {
		if (!told_to && operations >= operations_before) {
			told_to = 1;
			be_killed(phase, killer);
			while (phase == SLEEPS) {
				drive(doomed);
				sleep_until_told(0);
				look();
			}
		}
		if (told_to && phase == TAKES_BACK)
			take_memory_back();
		drive(doomed);
		if (one_in(16))
			take_memory_back();
		if (!look()) {
			if (one_in(16))
				sleep_until_told(1);
			else
				sched_yield();
		}
	}
}

/* Ends the process that was not to end before. */
static void stands(pid_t pid)
{
	int status;
	MUST(waitpid(pid, &status, WNOHANG) == 0);
}

static pid_t process(uint64_t own_seed)
{
	pid_t pid = fork();
	MUST(pid >= 0);
	if (!pid) {
		seed = own_seed;
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	}
	return pid;
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	int victims = atoi(argv[1]), direct = !strcmp(argv[2], "direct"), counts[PHASES] = { 0 };
	seed = strtoull(argv[3], NULL, 0);
	alarm(280);
	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(told != MAP_FAILED);
	atomic_store(&told->ready, -1);
	atomic_store(&told->connected[0], -1);
	pid_t well = process(draw());
	if (!well)
		stay_healthy();
	pid_t survivor = process(draw());
	if (!survivor)
		survive(victims, direct);
	for (round_now = 1; round_now <= victims; round_now++) {
		static const enum phase often[] = { OPENS, MEETS, MEETS, MOVES, MOVES, MOVES, MOVES, TAKES_BACK, TAKES_BACK, SLEEPS };
		enum phase phase = often[draw() % (sizeof often / sizeof *often)];
		enum killer killer = one_in(2) ? TIMER : one_in(2) || phase <= MEETS ? THIRD : SURVIVOR;
		uint64_t patience = some_time(phase == OPENS ? 24 : 20), own_seed = draw();
		counts[phase]++;
		atomic_store(&told->may_be_killed, 0);
		pid_t victim = process(own_seed);
		if (!victim)
			be_a_victim(phase, killer, direct);
		int status = 0;
		double end = seconds() + 2 * PATIENCE;
		while (waitpid(victim, &status, WNOHANG) == 0) {
			MUST(seconds() < end);
			stands(survivor);
			stands(well);
			if (atomic_load(&told->may_be_killed) == 1 + THIRD) {
				spin(patience);
				kill(victim, SIGKILL);
				atomic_store(&told->may_be_killed, 0);
			}
			usleep(50);
		}
		if (!(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
			fprintf(stderr, "it %s, and was to be killed by %s\n", phases[phase], killers[killer]);
		MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		atomic_store(&told->dead, round_now);
		while (atomic_load(&told->ended) < round_now) {
			stands(survivor);
			stands(well);
			usleep(50);
		}
	}
	int status;
	MUST(waitpid(survivor, &status, 0) == survivor && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	atomic_store(&told->stop, 1);
	MUST(waitpid(well, &status, 0) == well && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int phase = 0; phase < PHASES; phase++)
		printf("%s: %d\n", phases[phase], counts[phase]);
	printf("deaths: right\n");
	return 0;
}
