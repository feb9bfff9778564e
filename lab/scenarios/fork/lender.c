/* A process that lends queue pairs to its children (elver_lending.h), over a device of the kernel's: lender DEVICE CHILDREN
 * SEED. One pair, and children of all kinds in turn. */
#include "ends.h"

#define ROUNDS 20
/* Posts of a child that rests before it is killed. */
#define AT_REST 5
/* On Linux 5.10 rxe was seen to complete nothing for a WRITE that its peer refuses. */
#define REFUSED_MS 3000

static struct pair pair;
static double forked;

/* Writes, reads what it wrote, and sends. */
static void works(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    memset(shared->lent, 0, 64);
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(pair.lent.cq);
    shared->us = now_us() - forked;
    CHECK(!memcmp(shared->lent, "to read", 8));
    memcpy(shared->lent + 64, "written", 8);
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent + 64, shared->peer + 64));
    complete(pair.lent.cq);
    CHECK(!memcmp(shared->peer + 64, "written", 8));
    memcpy(shared->lent + 128, "is sent", 8);
    CHECK(!post(pair.lent.qp, IBV_WR_SEND, shared->lent + 128, NULL));
    complete(pair.lent.cq);
}

static void use(uint32_t times) {
    memcpy(shared->peer, "to read", 8);
    CHECK(!post_receive(pair.peer.qp, shared->peer + 128));
    forked = now_us();
    pid_t pid = child(works);
    complete(pair.peer.cq);
    CHECK(!memcmp(shared->peer + 128, "is sent", 8));
    reap(pid, 0);
    CHECK(back(&pair, times) == ELVER_LENT_FREE);
}

/* More than fits, one at a time: a full queue is an error that passes. */
static void floods(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    int done = 0, posted = 0;
    double begun = now_us();
    while (done < 10 * DEPTH) {
        struct ibv_wc wc;
        if (posted < 10 * DEPTH) {
            int error = post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64);
            CHECK(!error || error == ENOMEM);
            posted += !error;
        }
        int count = ibv_poll_cq(pair.lent.cq, 1, &wc);
        CHECK(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS));
        done += count;
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
    }
}

static void leaves_work(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    for (int i = 0; i < 4; i++)
        CHECK(!post_receive(pair.lent.qp, shared->lent));
    for (int i = 0; i < 8; i++)
        CHECK(!post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer));
    raise(SIGKILL);
}

static void fails(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, (unsigned char *)8));
    struct ibv_wc wc;
    double begun = now_us();
    int count;
    while (!(count = ibv_poll_cq(pair.lent.cq, 1, &wc)) && now_us() - begun < REFUSED_MS * 1e3)
        sched_yield();
    CHECK(count >= 0 && (!count || wc.status != IBV_WC_SUCCESS));
    printf("the refused WRITE: %s\n", count ? ibv_wc_status_str(wc.status) : "no completion");
}

static void holds(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    for (;;)
        pause();
}

static void is_refused(void) {
    CHECK(elver_take_qp(pair.lent.qp) == EBUSY);
    CHECK(post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
    CHECK(post_receive(pair.lent.qp, shared->lent) == EPERM);
    CHECK(elver_lend_qp(pair.peer.qp, 0) == EPERM && elver_take_back_qp(pair.lent.qp) == EPERM);
    CHECK(ibv_destroy_qp(pair.lent.qp) == EPERM);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(pair.lent.qp, &attr, IBV_QP_STATE) == EPERM);
}

static void grandchild_tries(void) {
    CHECK(elver_take_qp(pair.lent.qp) == EPERM);
    CHECK(post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
}

static void has_a_child(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    reap(child(grandchild_tries), 0);
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64));
    complete(pair.lent.cq);
}

/* Which of the children it is, and whether it rests before it is killed. */
static uint64_t turn;
static int rests;

/* Tells the parent, which is about to kill it, what should not be. */
static void expect(int is_so, int line) {
    if (!is_so) {
        shared->bad = line;
        _exit(1);
    }
}

/* Posts until it is killed, and sees no trace of who had the queue pair before; or rests when it has posted a few. */
static void works_until_killed(void) {
    int posted = 0, done = 0;
    double begun = now_us();
    expect(!elver_take_qp(pair.lent.qp), __LINE__);
    for (;;) {
        struct ibv_wc wc;
        if (!rests || posted < AT_REST) {
            /* The first is alone, so that it is known to have been done. */
            int error = posted && !done ? 0 : post_as(turn, pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer + 64);
            expect(!error || error == ENOMEM, __LINE__);
            posted += !error && !(posted && !done);
        }
        int count = ibv_poll_cq(pair.lent.cq, 1, &wc);
        expect(count >= 0 && (!count || (wc.status == IBV_WC_SUCCESS && wc.wr_id == turn)), __LINE__);
        done += count;
        expect(done || now_us() - begun < LIMIT_MS * 1e3, __LINE__);
        if (done >= (rests ? AT_REST : 1))
            shared->says = 1;
        if (!done || (rests && done < AT_REST))
            sched_yield();
        while (rests && done == AT_REST)
            pause();
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
    open_device(arguments[1]);

    pair = (struct pair){make(), make(), READ_WRITE};
    CHECK(elver_lend_qp(pair.lent.qp, 0) == ENOTCONN);
    connect_both(&pair);
    CHECK(elver_take_qp(pair.lent.qp) == EINVAL);
    CHECK(elver_lend_qp(pair.lent.qp, ~0U) == EINVAL);
    CHECK(!elver_lend_qp(pair.lent.qp, 0));
    CHECK(elver_lend_qp(pair.lent.qp, 0) == EALREADY);
    CHECK(elver_take_qp(pair.lent.qp) == EPERM);
    CHECK(post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
    /* One that is not lent works as ever. */
    CHECK(!post(pair.peer.qp, IBV_WR_RDMA_WRITE, shared->peer, shared->lent));
    complete(pair.peer.cq);
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
    CHECK(back(&pair, ++times) == ELVER_LENT_FREE);
    use(++times);
    puts("a child that fills the queue");

    reap(child(leaves_work), SIGKILL);
    CHECK(back(&pair, ++times) == ELVER_LENT_RESET);
    CHECK(elver_lent_ready(pair.lent.qp) == ENOTCONN);
    connect_anew(&pair);
    use(++times);
    puts("a child that leaves receives and WRITEs behind");

    reap(child(fails), 0);
    CHECK(back(&pair, ++times) == ELVER_LENT_RESET);
    connect_anew(&pair);
    use(++times);
    puts("a child whose peer refuses it");

    pid_t holder = child(holds), its;
    taken(&pair);
    CHECK(elver_lent_state(pair.lent.qp, &its, NULL) == ELVER_LENT_TAKEN && its == holder);
    reap(child(is_refused), 0);
    CHECK(ibv_destroy_qp(pair.lent.qp) == EBUSY && elver_take_back_qp(pair.lent.qp) == EBUSY);
    kill(holder, SIGKILL);
    reap(holder, SIGKILL);
    CHECK(back(&pair, ++times) == ELVER_LENT_FREE);
    reap(child(has_a_child), 0);
    CHECK(back(&pair, ++times) == ELVER_LENT_FREE);
    use(++times);
    puts("a second child, and a grandchild, are refused");

    int reset = 0;
    for (int i = 0; i < children; i++) {
        turn = i;
        rests = i % 3 == 0;
        shared->says = shared->bad = 0;
        pid_t pid = child(works_until_killed);
        double begun = now_us();
        while (!shared->says && !shared->bad && now_us() - begun < LIMIT_MS * 1e3)
            usleep(1000);
        double until = now_us() + rand_r(&seed) % 3000;
        while (now_us() < until)
            sched_yield();
        kill(pid, SIGKILL);
        if (shared->bad)
            fprintf(stderr, "child %d, which had the queue pair, found line %d not to be so\n", i, shared->bad);
        CHECK(shared->says && !shared->bad);
        reap(pid, SIGKILL);
        enum elver_lent_state state = back(&pair, ++times);
        CHECK(state == ELVER_LENT_FREE || (state == ELVER_LENT_RESET && !rests));
        if (state == ELVER_LENT_RESET) {
            reset++;
            connect_anew(&pair);
        }
    }
    use(++times);
    printf("%d children killed at any instruction: %d queue pairs connected anew\n", children, reset);

    CHECK(!elver_take_back_qp(pair.lent.qp));
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(pair.lent.cq);
    destroy(&pair);
    puts("the parent's again");
    return 0;
}
