/* Many processes at once, each with QPs to others of them by a graph that is drawn from a seed. Each QP is initiator
 * and target: WRITEs, READs, messages and atomics are compared with what its process knows of the other's memory.
 * All go on until each QP of each process has done so many operations that are asked for, so that the last has to do
 * all of its own against all others. Some wait for events, some poll, some are of other users.
 *
 * crowd PROCESSES QPS OPERATIONS SEED [users]: says what it saw, and exits with 0 when that was right. */
#define _GNU_SOURCE
#include <dirent.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/draw.h"

enum { PROCESSES = 128, QPS = 32, FIELD = 16 << 10, MESSAGE = 2048, RECEIVES = 8, USERS = 3, FIRST_USER = 12001 };
/* What takes longer is a deadlock. */
enum { PATIENCE = 280 };
/* What docs/preload.md says that a process costs: descriptors and threads of its device with a completion channel, and for
 * each peer that it reaches; KiB of memory of its own, and for each QP; the most KiB that two peers share. */
enum { DESCRIPTORS = 15, DESCRIPTORS_A_PEER = 3, THREADS = 2, OWN_KIB = 1024, OWN_KIB_A_QP = 16,
	SHARED_KIB = 2048, SHARED_KIB_A_PEER = 2 * 2049 + 1300 };
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* What a QP's process has for it. */
struct slot {
	/* The peer's to read and write, and to add to. */
	unsigned char field[FIELD];
	uint64_t words[2];
	/* Of its own operations: what is sent, what was read, what an atomic found, and what the peer's field has. */
	unsigned char out[FIELD], in[FIELD];
	uint64_t found;
	unsigned char inbox[RECEIVES][MESSAGE];
};

struct own {
	/* All peers add to it. */
	uint64_t shared;
	struct slot slots[QPS];
};

/* What a process costs, in KiB and counts. */
struct cost {
	long anonymous, shared, descriptors, threads, peers;
};

/* What all processes see. */
struct told {
	pthread_barrier_t barrier;
	_Atomic int reached, stop;
	struct process {
		union ibv_gid gid;
		uint64_t addr;
		uint32_t rkey;
		struct cost before, after;
		struct {
			uint32_t qpn;
			/* Operations that have ended, messages and additions among them, and the sum of a field. */
			uint64_t done, sent, added, sum;
		} qps[QPS];
	} processes[PROCESSES];
};

/* A QP, the end that it is joined to, and what it is about. */
struct end {
	int process, qp;
};
static struct end joined[PROCESSES][QPS];
static struct about {
	struct ibv_qp *qp;
	unsigned char model[FIELD];
	uint64_t words[2], sent, received, done;
	/* What it does now. */
	int kind;
	uint32_t at, length;
	uint64_t add;
} all[QPS];

static struct told *told;
static struct own *own;
static int who = -1, processes, qps, operations;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

#define MUST(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "process %d, line %d: not so: %s\n", who, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

static uint64_t sum_of(const unsigned char *bytes)
{
	uint64_t sum = 0xcbf29ce484222325;
	for (int at = 0; at < FIELD; at++)
		sum = (sum ^ bytes[at]) * 0x100000001b3;
	return sum;
}

static void first_bytes(unsigned char *bytes, int process, int qp)
{
	for (int at = 0; at < FIELD; at++)
		bytes[at] = process * 31 + qp * 7 + at;
}

/* What a message has: its number, and bytes that follow from it. */
static void write_message(unsigned char *to, uint32_t length, uint64_t number)
{
	memcpy(to, &number, sizeof number);
	for (uint32_t at = sizeof number; at < length; at++)
		to[at] = number * 13 + at;
}

static uint32_t length_of_message(uint64_t number)
{
	return 16 + number * 2654435761 % (MESSAGE - 16);
}

/* Pairs of QPs, drawn; none of a process with itself. */
static void draw_graph(void)
{
	static struct end ends[PROCESSES * QPS];
	int count = 0;
	for (int process = 0; process < processes; process++)
		for (int qp = 0; qp < qps; qp++)
			ends[count++] = (struct end){ process, qp };
	for (int at = count - 1; at > 0; at--) {
		int other = draw() % (at + 1);
		struct end end = ends[at];
		ends[at] = ends[other], ends[other] = end;
	}
	for (int at = 0; at < count; at += 2) {
		/* Those before are joined already: one of them takes what would meet itself. */
		for (int other = 0; ends[at].process == ends[at + 1].process; other += 2) {
			MUST(other < count);
			int fits = ends[other].process != ends[at].process && ends[other + 1].process != ends[at].process;
			if (other != at && fits) {
				struct end end = ends[at + 1];
				ends[at + 1] = ends[other + 1], ends[other + 1] = end;
			}
		}
	}
	for (int at = 0; at < count; at += 2) {
		MUST(ends[at].process != ends[at + 1].process);
		joined[ends[at].process][ends[at].qp] = ends[at + 1];
		joined[ends[at + 1].process][ends[at + 1].qp] = ends[at];
	}
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	MUST(dir);
	int count = -2;
	while (readdir(dir))
		count++;
	MUST(!closedir(dir));
	return count;
}

static struct cost cost(void)
{
	struct cost cost = { .descriptors = entries("/proc/self/fd"), .threads = entries("/proc/self/task") };
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");
	MUST(status);
	while (fgets(line, sizeof line, status)) {
		sscanf(line, "RssAnon: %ld", &cost.anonymous);
		sscanf(line, "RssShmem: %ld", &cost.shared);
	}
	MUST(!fclose(status));
	FILE *maps = fopen("/proc/self/maps", "r");
	MUST(maps);
	/* Each peer that is reached through memory has one, and this process one to it. */
	while (fgets(line, sizeof line, maps))
		cost.peers += strstr(line, "memfd:elver-lane") != NULL;
	MUST(!fclose(maps));
	cost.peers /= 2;
	return cost;
}

static void receive(int qp, int at)
{
	struct ibv_sge sge = { (uintptr_t)own->slots[qp].inbox[at], MESSAGE, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = (uint64_t)qp << 8 | at, .sg_list = &sge, .num_sge = 1 };
	MUST(!ibv_post_recv(all[qp].qp, &wr, &bad));
}

static void open_device(struct ibv_comp_channel **channel, int sleeps)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	MUST(devices && devices[0]);
	struct ibv_context *ctx = ibv_open_device(devices[0]);
	MUST(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	MUST(pd);
	if (sleeps)
		MUST((*channel = ibv_create_comp_channel(ctx)));
	MUST((cq = ibv_create_cq(ctx, qps * (RECEIVES + 4), NULL, *channel, 0)));
	MUST((mr = ibv_reg_mr(pd, own, sizeof *own, RIGHTS)));
	struct process *self = &told->processes[who];
	self->addr = (uintptr_t)own;
	self->rkey = mr->rkey;
	MUST(!ibv_query_gid(ctx, 1, 0, &self->gid));
	for (int n = 0; n < qps; n++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { 4, RECEIVES, 1, 1, 0 } };
		MUST((all[n].qp = ibv_create_qp(pd, &init)));
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
		MUST(!ibv_modify_qp(all[n].qp, &attr,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		self->qps[n].qpn = all[n].qp->qp_num;
		for (int at = 0; at < RECEIVES; at++)
			receive(n, at);
	}
}

static void connect_all(void)
{
	for (int n = 0; n < qps; n++) {
		struct end peer = joined[who][n];
		struct process *other = &told->processes[peer.process];
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
			.dest_qp_num = other->qps[peer.qp].qpn, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
			.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = other->gid, .hop_limit = 1 } } };
		MUST(!ibv_modify_qp(all[n].qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
			| IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		/* 1.07 s, seven times: what is lost comes again, and others may have the processors. */
		struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
			.max_rd_atomic = 4 };
		MUST(!ibv_modify_qp(all[n].qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
			| IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	}
}

enum { WRITE_AND_READ, READ, MESSAGE_OUT, ADD, SWAP, ADD_TO_SHARED, KINDS };

static void post(int n)
{
	struct about *about = &all[n];
	struct slot *slot = &own->slots[n];
	struct end peer = joined[who][n];
	struct process *other = &told->processes[peer.process];
	uint64_t there = other->addr + offsetof(struct own, slots) + peer.qp * sizeof(struct slot);
	about->kind = draw() % KINDS;
	about->length = 1 + draw() % (draw() % 8 ? 512 : FIELD);
	about->at = draw() % (FIELD - about->length + 1);
	about->add = draw();

	struct ibv_sge out = { (uintptr_t)slot->out, about->length, mr->lkey };
	struct ibv_sge in = { (uintptr_t)slot->in, about->length, mr->lkey };
	struct ibv_send_wr *bad, second, wr = { .wr_id = n, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = there + offsetof(struct slot, field) + about->at;
	wr.wr.rdma.rkey = other->rkey;
	wr.sg_list = &in;
	wr.opcode = IBV_WR_RDMA_READ;
	switch (about->kind) {
	case WRITE_AND_READ:
		for (uint32_t at = 0; at < about->length; at++)
			slot->out[at] = about->add * 11 + at * 3;
		memcpy(about->model + about->at, slot->out, about->length);
		second = wr;
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.sg_list = &out;
		wr.send_flags = 0;
		wr.next = &second;
		break;
	case READ:
		memset(slot->in, 0, about->length);
		break;
	case MESSAGE_OUT:
		wr.opcode = IBV_WR_SEND;
		wr.sg_list = &out;
		out.length = length_of_message(about->sent);
		write_message(slot->out, out.length, about->sent);
		break;
	default:
		in.addr = (uintptr_t)&slot->found;
		in.length = sizeof slot->found;
		wr.wr.atomic.rkey = other->rkey;
		wr.wr.atomic.compare_add = about->kind == ADD ? about->add : about->kind == SWAP ? about->words[1] : 1;
		wr.wr.atomic.swap = about->add;
		wr.wr.atomic.remote_addr = about->kind == ADD_TO_SHARED
			? other->addr + offsetof(struct own, shared)
			: there + offsetof(struct slot, words) + 8 * (about->kind == SWAP);
		wr.opcode = about->kind == SWAP ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
	}
	MUST(!ibv_post_send(about->qp, &wr, &bad));
}

/* What has ended is what it was to be. */
static void check(int n)
{
	struct about *about = &all[n];
	struct slot *slot = &own->slots[n];
	switch (about->kind) {
	case WRITE_AND_READ:
	case READ:
		MUST(!memcmp(slot->in, about->model + about->at, about->length));
		break;
	case MESSAGE_OUT:
		about->sent++;
		break;
	case ADD:
		MUST(slot->found == about->words[0]);
		about->words[0] += about->add;
		break;
	case SWAP:
		MUST(slot->found == about->words[1]);
		about->words[1] = about->add;
		break;
	case ADD_TO_SHARED:
		told->processes[who].qps[n].added++;
	}
	about->done++;
}

static void check_message(const struct ibv_wc *wc)
{
	int n = wc->wr_id >> 8, at = wc->wr_id & 0xff;
	unsigned char expected[MESSAGE];
	uint32_t length = length_of_message(all[n].received);
	write_message(expected, length, all[n].received);
	MUST(wc->byte_len == length && !memcmp(own->slots[n].inbox[at], expected, length));
	all[n].received++;
	receive(n, at);
}

/* QPs that have done what is asked for, each counted once, and those whose operation has not ended. */
static int ready, outstanding;

/* Takes all completions that are there, and has each QP go on until all processes are where they are to be. */
static int take_all(void)
{
	struct ibv_wc wcs[16];
	int found, any = 0;
	while ((found = ibv_poll_cq(cq, 16, wcs)) > 0) {
		any = 1;
		for (int at = 0; at < found; at++) {
			if (wcs[at].status != IBV_WC_SUCCESS)
				fprintf(stderr, "process %d: %s\n", who, ibv_wc_status_str(wcs[at].status));
			MUST(wcs[at].status == IBV_WC_SUCCESS);
			if (wcs[at].opcode == IBV_WC_RECV) {
				check_message(&wcs[at]);
				continue;
			}
			int n = wcs[at].wr_id;
			check(n);
			if (all[n].done == (uint64_t)operations && ++ready == qps
			    && atomic_fetch_add(&told->reached, 1) + 1 == processes)
				atomic_store(&told->stop, 1);
			if (atomic_load(&told->stop))
				outstanding--;
			else
				post(n);
		}
	}
	MUST(found == 0);
	return any;
}

static void work(struct ibv_comp_channel *channel)
{
	for (int n = 0; n < qps; n++, outstanding++)
		post(n);
	while (outstanding) {
		if (channel)
			MUST(!ibv_req_notify_cq(cq, 0));
		if (take_all() || !channel || !outstanding)
			continue;
		struct ibv_cq *of;
		void *context;
		MUST(!ibv_get_cq_event(channel, &of, &context));
		ibv_ack_cq_events(of, 1);
	}
	/* From here on nobody sends more than one message to each QP, and all before are taken. */
	take_all();
	for (int n = 0; n < qps; n++) {
		told->processes[who].qps[n].sent = all[n].sent;
		told->processes[who].qps[n].done = all[n].done;
		told->processes[who].qps[n].sum = sum_of(all[n].model);
	}
}

static void meet(void)
{
	int met = pthread_barrier_wait(&told->barrier);
	MUST(met == 0 || met == PTHREAD_BARRIER_SERIAL_THREAD);
}

/* What others did to this process's memory is what they say. */
static void check_own(void)
{
	uint64_t added = 0;
	for (int n = 0; n < qps; n++) {
		struct end peer = joined[who][n];
		typeof(&told->processes[0].qps[0]) other = &told->processes[peer.process].qps[peer.qp];
		while (all[n].received < other->sent)
			take_all();
		MUST(all[n].received == other->sent);
		MUST(sum_of(own->slots[n].field) == other->sum);
		added += other->added;
	}
	MUST(own->shared == added);
}

static void process(int users)
{
	if (users && who % USERS) {
		/* Processes of one user may be debugged by each other, though this one has changed its own. */
		int user = FIRST_USER + who % USERS;
		MUST(!setgid(user) && !setuid(user) && !prctl(PR_SET_DUMPABLE, 1));
		/* That has ended with the old user. */
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	}
	own = aligned_alloc(4096, (sizeof *own + 4095) / 4096 * 4096);
	MUST(own);
	memset(own, 0, sizeof *own);
	for (int n = 0; n < qps; n++) {
		first_bytes(own->slots[n].field, who, n);
		first_bytes(all[n].model, joined[who][n].process, joined[who][n].qp);
	}
	struct process *self = &told->processes[who];
	self->before = cost();
	/* In each pair of users there are some that poll and some that sleep. */
	int sleeps = who / USERS % 2;
	struct ibv_comp_channel *channel = NULL;
	open_device(&channel, sleeps);
	meet();
	connect_all();
	meet();
	work(channel);
	meet();
	check_own();
	self->after = cost();
	meet();
	for (int n = 0; n < qps; n++)
		MUST(!ibv_destroy_qp(all[n].qp));
}

/* Processes that one has QPs with. */
static int peers_of(int process)
{
	int count = 0;
	for (int other = 0; other < processes; other++) {
		int qp = 0;
		while (qp < qps && joined[process][qp].process != other)
			qp++;
		count += qp < qps;
	}
	return count;
}

static struct cost beyond(struct cost after, struct cost before)
{
	return (struct cost){ after.anonymous - before.anonymous, after.shared - before.shared,
		after.descriptors - before.descriptors, after.threads - before.threads, after.peers - before.peers };
}

static long more(long one, long other)
{
	return one > other ? one : other;
}

static void say_costs(void)
{
	struct cost most = { 0 };
	uint64_t least_done = UINT64_MAX, most_done = 0, sum = 0;
	long limit = sysconf(_SC_OPEN_MAX), met = 0, all_peers = 0;
	for (who = 0; who < processes; who++) {
		struct process *process = &told->processes[who];
		struct cost cost = beyond(process->after, process->before);
		/* Whom it asked and who asked it, it met once. */
		MUST(cost.peers <= peers_of(who) && cost.peers <= limit / 6);
		MUST(cost.descriptors <= DESCRIPTORS + DESCRIPTORS_A_PEER * cost.peers);
		MUST(cost.threads <= THREADS);
		MUST(cost.anonymous <= OWN_KIB + OWN_KIB_A_QP * qps);
		MUST(cost.shared <= SHARED_KIB + SHARED_KIB_A_PEER * cost.peers);
		most = (struct cost){ more(most.anonymous, cost.anonymous), more(most.shared, cost.shared),
			more(most.descriptors, cost.descriptors), more(most.threads, cost.threads),
			more(most.peers, cost.peers) };
		met += cost.peers, all_peers += peers_of(who);
		for (int n = 0; n < qps; n++) {
			uint64_t done = process->qps[n].done;
			MUST(done >= (uint64_t)operations);
			least_done = done < least_done ? done : least_done;
			most_done = done > most_done ? done : most_done;
			sum += done;
		}
	}
	printf("the most of a process: %ld KiB of its own, %ld KiB shared, %ld descriptors, %ld threads, %ld peers\n",
		most.anonymous, most.shared, most.descriptors, most.threads, most.peers);
	printf("operations of a QP: %lu at the least, %lu at the most, %lu on average\n", least_done, most_done,
		sum / processes / qps);
	printf("met: %ld of %ld\n", met, all_peers);
}

int main(int argc, char **argv)
{
	MUST(argc >= 5);
	processes = atoi(argv[1]);
	qps = atoi(argv[2]);
	operations = atoi(argv[3]);
	seed = strtoull(argv[4], NULL, 0);
	int users = argc > 5 && !strcmp(argv[5], "users");
	MUST(processes > 1 && processes <= PROCESSES && qps > 0 && qps <= QPS && processes * qps % 2 == 0);
	draw_graph();
	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(told != MAP_FAILED);
	pthread_barrierattr_t between;
	MUST(!pthread_barrierattr_init(&between));
	MUST(!pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED));
	MUST(!pthread_barrier_init(&told->barrier, &between, processes));
	pid_t pids[PROCESSES];
	for (int at = 0; at < processes; at++) {
		pids[at] = fork();
		MUST(pids[at] >= 0);
		if (pids[at])
			continue;
		MUST(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		alarm(PATIENCE);
		who = at;
		seed += who;
		process(users);
		exit(0);
	}
	/* One that fails would be waited for by all others. */
	int failed = 0;
	for (int rest = processes; rest > 0; rest--) {
		int status;
		pid_t ended = wait(&status);
		MUST(ended > 0);
		int at = 0;
		while (pids[at] != ended)
			at++;
		pids[at] = 0;
		if (status == 0 || failed)
			continue;
		failed = 1;
		fprintf(stderr, "process %d ended with %#x\n", at, status);
		for (int other = 0; other < processes; other++)
			if (pids[other])
				kill(pids[other], SIGKILL);
	}
	MUST(!failed);
	say_costs();
	printf("%d processes: right\n", processes);
	return 0;
}
