/* A process that lends queue pairs to its children (elver_lending.h), over a device of the kernel's: lender DEVICE CHILDREN
 * SEED. Each pair of queue pairs is connected to itself: the lent one, and its peer, which the parent keeps. */
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
#define ROUNDS 20
#define LIMIT_MS 20000
/* On Linux 5.10 rxe was seen to complete nothing for a WRITE that its peer refuses. */
#define REFUSED_MS 3000

#define CHECK(it)                                                                                        \
    do {                                                                                                 \
        if (!(it)) {                                                                                     \
            fprintf(stderr, "line %d: %s: errno %d (%s), lending: %s\n", __LINE__, #it, errno,           \
                    strerror(errno), elver_lending_error());                                             \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

struct end {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

/* What parent and children share: the registered memory, and what children measure. */
struct shared {
    unsigned char lent[PART], peer[PART];
    double us;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct shared *shared;
static union ibv_gid gid;
static struct end lent, peer;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static struct end make(void) {
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

static void connect_to(struct ibv_qp *qp, uint32_t remote) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
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

static void connect_both(void) {
    struct ibv_wc wc;
    connect_to(peer.qp, lent.qp->qp_num);
    connect_to(lent.qp, peer.qp->qp_num);
    while (ibv_poll_cq(peer.cq, 1, &wc) > 0)
        ;
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const unsigned char *local, const unsigned char *remote) {
    struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = (uintptr_t)remote, .rkey = mr->rkey}};
    return ibv_post_send(qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, unsigned char *to) {
    struct ibv_sge sge = {.addr = (uintptr_t)to, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp, &wr, &bad);
}

/* The next completion, which has to be a success. */
static void complete(struct ibv_cq *cq) {
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

static pid_t child(void (*does)(void)) {
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

static void reap(pid_t pid, int signal) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : WIFEXITED(status) && !WEXITSTATUS(status));
}

/* Waits until the queue pair is nobody's. */
static enum elver_lent_state back(uint32_t times) {
    double begun = now_us();
    for (;;) {
        uint32_t returned;
        enum elver_lent_state state = elver_lent_state(lent.qp, NULL, &returned);
        if (returned == times && state != ELVER_LENT_TAKEN && state != ELVER_LENT_RETURNING)
            return state;
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

static void taken(void) {
    double begun = now_us();
    while (elver_lent_state(lent.qp, NULL, NULL) != ELVER_LENT_TAKEN) {
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

static void connected(void) {
    connect_both();
    CHECK(!elver_lent_ready(lent.qp));
}

static double forked;

/* Writes, reads what it wrote, and sends. */
static void works(void) {
    CHECK(!elver_take_qp(lent.qp));
    memset(shared->lent, 0, 64);
    CHECK(!post(lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(lent.cq);
    shared->us = now_us() - forked;
    CHECK(!memcmp(shared->lent, "to read", 8));
    memcpy(shared->lent + 64, "written", 8);
    CHECK(!post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent + 64, shared->peer + 64));
    complete(lent.cq);
    CHECK(!memcmp(shared->peer + 64, "written", 8));
    memcpy(shared->lent + 128, "is sent", 8);
    CHECK(!post(lent.qp, IBV_WR_SEND, shared->lent + 128, NULL));
    complete(lent.cq);
}

static void use(uint32_t times) {
    memcpy(shared->peer, "to read", 8);
    CHECK(!post_receive(peer.qp, shared->peer + 128));
    forked = now_us();
    pid_t pid = child(works);
    complete(peer.cq);
    CHECK(!memcmp(shared->peer + 128, "is sent", 8));
    reap(pid, 0);
    CHECK(back(times) == ELVER_LENT_FREE);
}

/* More than fits, one at a time: a full queue is an error that passes. */
static void floods(void) {
    CHECK(!elver_take_qp(lent.qp));
    int done = 0, posted = 0;
    double begun = now_us();
    while (done < 10 * DEPTH) {
        struct ibv_wc wc;
        if (posted < 10 * DEPTH) {
            int error = post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64);
            CHECK(!error || error == ENOMEM);
            posted += !error;
        }
        int count = ibv_poll_cq(lent.cq, 1, &wc);
        CHECK(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS));
        done += count;
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
    }
}

static void leaves_work(void) {
    CHECK(!elver_take_qp(lent.qp));
    for (int i = 0; i < 4; i++)
        CHECK(!post_receive(lent.qp, shared->lent));
    for (int i = 0; i < 8; i++)
        CHECK(!post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer));
    raise(SIGKILL);
}

static void fails(void) {
    CHECK(!elver_take_qp(lent.qp));
    CHECK(!post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, (unsigned char *)8));
    struct ibv_wc wc;
    double begun = now_us();
    int count;
    while (!(count = ibv_poll_cq(lent.cq, 1, &wc)) && now_us() - begun < REFUSED_MS * 1e3)
        sched_yield();
    CHECK(count >= 0 && (!count || wc.status != IBV_WC_SUCCESS));
    printf("the refused WRITE: %s\n", count ? ibv_wc_status_str(wc.status) : "no completion");
}

static void holds(void) {
    CHECK(!elver_take_qp(lent.qp));
    for (;;)
        pause();
}

static void is_refused(void) {
    CHECK(elver_take_qp(lent.qp) == EBUSY);
    CHECK(post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
    CHECK(post_receive(lent.qp, shared->lent) == EPERM);
    CHECK(elver_lend_qp(peer.qp, 0) == EPERM && elver_take_back_qp(lent.qp) == EPERM);
    CHECK(ibv_destroy_qp(lent.qp) == EPERM);
}

static void grandchild_tries(void) {
    CHECK(elver_take_qp(lent.qp) == EPERM);
    CHECK(post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
}

static void has_a_child(void) {
    CHECK(!elver_take_qp(lent.qp));
    reap(child(grandchild_tries), 0);
    CHECK(!post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64));
    complete(lent.cq);
}

static void works_until_killed(void) {
    if (elver_take_qp(lent.qp))
        _exit(1);
    for (;;) {
        struct ibv_wc wc;
        post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64);
        ibv_poll_cq(lent.cq, 1, &wc);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    int children = atoi(arguments[2]);
    unsigned seed = atoi(arguments[3]);
    printf("seed %u\n", seed);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    for (int i = 0; list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), arguments[1]))
            context = ibv_open_device(list[i]);
    CHECK(context);
    CHECK(!ibv_query_gid(context, 1, GID_INDEX, &gid));
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    mr = ibv_reg_mr(pd, shared, sizeof *shared, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr);

    lent = make();
    peer = make();
    CHECK(elver_lend_qp(lent.qp, 0) == ENOTCONN);
    connect_both();
    CHECK(elver_take_qp(lent.qp) == EINVAL);
    CHECK(!elver_lend_qp(lent.qp, 0));
    CHECK(elver_lend_qp(lent.qp, 0) == EALREADY);
    CHECK(elver_take_qp(lent.qp) == EPERM);
    CHECK(post(lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
    /* One that is not lent works as ever. */
    CHECK(!post(peer.qp, IBV_WR_RDMA_WRITE, shared->peer, shared->lent));
    complete(peer.cq);
    puts("lent, and the parent's no more");

    uint32_t times = 0;
    double us[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        use(++times);
        us[i] = shared->us;
    }
    qsort(us, ROUNDS, sizeof *us, ascending);
    printf("%d children in turn; from fork to the first READ %.0f us in the median\n", ROUNDS, us[ROUNDS / 2]);

    reap(child(floods), 0);
    CHECK(back(++times) == ELVER_LENT_FREE);
    use(++times);
    puts("a child that fills the queue");

    reap(child(leaves_work), SIGKILL);
    CHECK(back(++times) == ELVER_LENT_RESET);
    CHECK(elver_lent_ready(lent.qp) == ENOTCONN);
    connected();
    use(++times);
    puts("a child that leaves receives and WRITEs behind");

    reap(child(fails), 0);
    CHECK(back(++times) == ELVER_LENT_RESET);
    connected();
    use(++times);
    puts("a child whose peer refuses it");

    pid_t holder = child(holds), its;
    taken();
    CHECK(elver_lent_state(lent.qp, &its, NULL) == ELVER_LENT_TAKEN && its == holder);
    reap(child(is_refused), 0);
    CHECK(ibv_destroy_qp(lent.qp) == EBUSY && elver_take_back_qp(lent.qp) == EBUSY);
    kill(holder, SIGKILL);
    reap(holder, SIGKILL);
    CHECK(back(++times) == ELVER_LENT_FREE);
    reap(child(has_a_child), 0);
    CHECK(back(++times) == ELVER_LENT_FREE);
    use(++times);
    puts("a second child, and a grandchild, are refused");

    int reset = 0;
    for (int i = 0; i < children; i++) {
        pid_t pid = child(works_until_killed);
        taken();
        double until = now_us() + rand_r(&seed) % 3000;
        while (now_us() < until)
            sched_yield();
        kill(pid, SIGKILL);
        reap(pid, SIGKILL);
        enum elver_lent_state state = back(++times);
        CHECK(state == ELVER_LENT_FREE || state == ELVER_LENT_RESET);
        if (state == ELVER_LENT_RESET) {
            reset++;
            connected();
        }
    }
    use(++times);
    printf("%d children killed at any instruction: %d queue pairs connected anew\n", children, reset);

    CHECK(!elver_take_back_qp(lent.qp));
    CHECK(!post(lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(lent.cq);
    CHECK(!ibv_destroy_qp(lent.qp) && !ibv_destroy_qp(peer.qp));
    puts("the parent's again");
    return 0;
}
