/* What the programs of this scenario have in common: pairs of queue pairs, posts, children. */
#ifndef ENDS_H
#define ENDS_H

#include <elver_lending.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GID_INDEX 1
#define DEPTH 64
#define PART 4096
#define LIMIT_MS 20000

#define CHECK(it)                                                                                        \
    do {                                                                                                 \
        if (!(it)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d (%s), lending: %s\n", __LINE__, #it, errno,           \
                    strerror(errno), elver_lending_error());                                             \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

#define READ_WRITE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

struct end {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

/* Two ends that are connected to each other: the one that is lent, and its peer, which the parent keeps. */
struct pair {
    struct end lent, peer;
    unsigned peer_access;
};

/* What parent and children share: the registered memory, and what they tell each other. */
struct shared {
    unsigned char lent[PART], peer[PART];
    double us;
    volatile int says, bad;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct shared *shared;
static union ibv_gid gid;

static inline double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static inline struct end make(void) {
    struct end end;
    end.cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    CHECK(end.cq);
    struct ibv_qp_init_attr init = {
        .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
    end.qp = ibv_create_qp(pd, &init);
    CHECK(end.qp);
    return end;
}

static inline void connect_to(struct ibv_qp *qp, uint32_t remote, unsigned access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = access};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = remote,
        .rq_psn = 1, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 1}}};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 1,
        .max_rd_atomic = 4};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void connect_both(struct pair *pair) {
    struct ibv_wc wc;
    connect_to(pair->peer.qp, pair->lent.qp->qp_num, pair->peer_access);
    connect_to(pair->lent.qp, pair->peer.qp->qp_num, READ_WRITE);
    while (ibv_poll_cq(pair->peer.cq, 1, &wc) > 0)
        ;
}

static inline struct pair make_pair(unsigned peer_access) {
    struct pair pair = {make(), make(), peer_access};
    connect_both(&pair);
    return pair;
}

/* Connects a queue pair that came back in RESET. */
static inline void connect_anew(struct pair *pair) {
    connect_both(pair);
    CHECK(!elver_lent_ready(pair->lent.qp));
}

static inline void destroy(struct pair *pair) {
    CHECK(!ibv_destroy_qp(pair->lent.qp) && !ibv_destroy_qp(pair->peer.qp));
    CHECK(!ibv_destroy_cq(pair->lent.cq) && !ibv_destroy_cq(pair->peer.cq));
}

static inline int post_as(uint64_t id, struct ibv_qp *qp, enum ibv_wr_opcode opcode, const unsigned char *local,
                   const unsigned char *remote) {
    struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = (uintptr_t)remote, .rkey = mr->rkey}};
    return ibv_post_send(qp, &wr, &bad);
}

static inline int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const unsigned char *local, const unsigned char *remote) {
    return post_as(7, qp, opcode, local, remote);
}

static inline int post_receive(struct ibv_qp *qp, unsigned char *to) {
    struct ibv_sge sge = {.addr = (uintptr_t)to, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp, &wr, &bad);
}

/* The next completion, which has to be a success. */
static inline void complete(struct ibv_cq *cq) {
    struct ibv_wc wc;
    double begun = now_us();
    int count;
    while (!(count = ibv_poll_cq(cq, 1, &wc))) {
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        /* There may be one processor for the child, the lender's thread and the device. */
        sched_yield();
    }
    if (count != 1 || wc.status)
        fprintf(stderr, "completion: %d, %s\n", count, ibv_wc_status_str(wc.status));
    CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
}

static inline pid_t child(void (*does)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        does();
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

static inline void reap(pid_t pid, int signal) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : WIFEXITED(status) && !WEXITSTATUS(status));
}

/* Waits until the queue pair is nobody's. */
static inline enum elver_lent_state back(const struct pair *pair, uint32_t times) {
    double begun = now_us();
    for (;;) {
        uint32_t returned;
        enum elver_lent_state state = elver_lent_state(pair->lent.qp, NULL, &returned);
        if (returned == times && state != ELVER_LENT_TAKEN && state != ELVER_LENT_RETURNING)
            return state;
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

static inline void taken(const struct pair *pair) {
    double begun = now_us();
    while (elver_lent_state(pair->lent.qp, NULL, NULL) != ELVER_LENT_TAKEN) {
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

/* Waits until the other side has said so much. */
static inline void said(int what) {
    double begun = now_us();
    while (shared->says < what) {
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

/* Opens a device, and registers what parent and children share. */
static inline void open_device(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    for (int i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    CHECK(context);
    ibv_free_device_list(list);
    CHECK(!ibv_query_gid(context, 1, GID_INDEX, &gid));
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    if (!shared)
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    mr = ibv_reg_mr(pd, shared, sizeof *shared, IBV_ACCESS_LOCAL_WRITE | READ_WRITE);
    CHECK(mr);
}

#endif
