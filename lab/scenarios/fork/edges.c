/* What else may befall a process that lends queue pairs: edges DEVICE, and edges DEVICE late where libibverbs is linked first.
 * Each case has a pair of its own, and children that a time ends: who hangs is no success. */
#include "ends.h"

static struct pair pair, other;

static pid_t limited(void (*does)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        alarm(LIMIT_MS / 1000);
        does();
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

static void lend(unsigned peer_access, unsigned flags) {
    pair = make_pair(peer_access);
    CHECK(!elver_lend_qp(pair.lent.qp, flags));
    shared->says = 0;
}

static void reads(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(pair.lent.cq);
}

/* A peer that allows READs alone stays as it is when a child ends. */
static void read_only_peer(void) {
    lend(IBV_ACCESS_REMOTE_READ, ELVER_LEND_NO_WRITE);
    CHECK(!post_receive(pair.peer.qp, shared->peer));
    for (uint32_t times = 1; times <= 2; times++) {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        struct ibv_wc wc;
        reap(limited(reads), 0);
        CHECK(back(&pair, times) == ELVER_LENT_RESET);
        CHECK(!ibv_query_qp(pair.peer.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
        CHECK(!ibv_poll_cq(pair.peer.cq, 1, &wc));
        connect_anew(&pair);
    }
    destroy(&pair);
}

static void has_the_former(void) {
    said(1);
    CHECK(elver_take_qp(pair.lent.qp) == EINVAL);
    CHECK(post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer) == EPERM);
    CHECK(post_receive(pair.lent.qp, shared->lent) == EPERM);
    CHECK(elver_lent_state(pair.lent.qp, NULL, NULL) == ELVER_LENT_NOT);
}

static void reads_of_the_other(void) {
    CHECK(!elver_take_qp(other.lent.qp));
    CHECK(!post(other.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(other.lent.cq);
}

/* Who knows a queue pair that is lent no more gets nothing of the one that is lent in its place. */
static void slot_of_another(void) {
    uint32_t returned = 7;
    lend(READ_WRITE, 0);
    reap(limited(reads), 0);
    CHECK(back(&pair, 1) == ELVER_LENT_FREE);
    pid_t pid = limited(has_the_former);
    CHECK(!elver_take_back_qp(pair.lent.qp));
    other = make_pair(READ_WRITE);
    CHECK(!elver_lend_qp(other.lent.qp, 0));
    CHECK(elver_lent_state(other.lent.qp, NULL, &returned) == ELVER_LENT_FREE && !returned);
    shared->says = 1;
    reap(pid, 0);
    CHECK(elver_lent_state(other.lent.qp, NULL, &returned) == ELVER_LENT_FREE && !returned);
    reap(limited(reads_of_the_other), 0);
    CHECK(back(&other, 1) == ELVER_LENT_FREE);
    destroy(&other);
    destroy(&pair);
}

static void can_never_be_posted(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    struct ibv_sge sges[64] = {{.addr = (uintptr_t)shared->lent, .length = 1, .lkey = mr->lkey}};
    struct ibv_send_wr *bad, wr = {.wr_id = 7, .sg_list = sges, .num_sge = 64, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = (uintptr_t)shared->peer, .rkey = mr->rkey}};
    CHECK(ibv_post_send(pair.lent.qp, &wr, &bad) == EINVAL && bad == &wr);
    wr.num_sge = 1;
    wr.send_flags |= IBV_SEND_INLINE;
    sges[0].length = PART;
    CHECK(ibv_post_send(pair.lent.qp, &wr, &bad) == EINVAL && bad == &wr);
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(pair.lent.cq);
}

static void changes(void) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(!elver_take_qp(pair.lent.qp));
    CHECK(ibv_modify_qp(pair.lent.qp, &attr, IBV_QP_STATE) == EPERM);
}

/* What a child is refused leaves the queue pair as it was. */
static void refusals(void) {
    lend(READ_WRITE, 0);
    reap(limited(can_never_be_posted), 0);
    CHECK(back(&pair, 1) == ELVER_LENT_FREE);
    reap(limited(changes), 0);
    CHECK(back(&pair, 2) == ELVER_LENT_FREE);
    destroy(&pair);
}

static void waits(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    said(1);
}

/* A message to a child that has not posted its receive does not become the next one's. */
static void receives_of_before(void) {
    pair = make_pair(READ_WRITE);
    CHECK(!post_receive(pair.lent.qp, shared->lent));
    CHECK(!elver_lend_qp(pair.lent.qp, 0));
    shared->says = 0;
    pid_t pid = limited(waits);
    taken(&pair);
    CHECK(!post(pair.peer.qp, IBV_WR_SEND, shared->peer, NULL));
    complete(pair.peer.cq);
    shared->says = 1;
    reap(pid, 0);
    CHECK(back(&pair, 1) == ELVER_LENT_RESET);
    destroy(&pair);
}

/* Takes the queue pair when it is free, receives and posts. */
static void comes_later(void) {
    int error;
    while ((error = elver_take_qp(pair.lent.qp))) {
        CHECK(error == EBUSY || error == EAGAIN || error == ENOTCONN);
        usleep(1000);
    }
    struct ibv_wc wc;
    CHECK(!ibv_poll_cq(pair.lent.cq, 1, &wc));
    CHECK(!post(pair.lent.qp, IBV_WR_RDMA_READ, shared->lent, shared->peer));
    complete(pair.lent.cq);
}

static void receives_later(void) {
    comes_later();
    CHECK(!post_receive(pair.lent.qp, shared->lent));
}

static void leaves_work(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    CHECK(!post_receive(pair.lent.qp, shared->lent));
    for (int i = 0; i < 8; i++)
        CHECK(!post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer));
}

/* A child that was forked while the queue pair was in RESET may use all of it. */
static void forked_in_reset(void) {
    lend(READ_WRITE, 0);
    reap(limited(leaves_work), 0);
    CHECK(back(&pair, 1) == ELVER_LENT_RESET);
    pid_t pid = limited(receives_later);
    connect_anew(&pair);
    reap(pid, 0);
    CHECK(back(&pair, 2) == ELVER_LENT_RESET);
    destroy(&pair);
}

/* Connects the queue pair as often as it has to be until so many children have ended well. */
static void serve(const pid_t *pids, int count) {
    double begun = now_us();
    for (int at = 0; at < count;) {
        int status;
        pid_t ended = waitpid(pids[at], &status, WNOHANG);
        CHECK(!ended || (ended == pids[at] && WIFEXITED(status) && !WEXITSTATUS(status)));
        at += ended != 0;
        if (!ended && elver_lent_state(pair.lent.qp, NULL, NULL) == ELVER_LENT_RESET)
            connect_anew(&pair);
        CHECK(now_us() - begun < LIMIT_MS * 1e3);
        usleep(1000);
    }
}

/* Nor does one that was forked while it came back find it locked. */
static void forked_in_return(void) {
    lend(READ_WRITE, 0);
    for (int round = 0; round < 8; round++) {
        pid_t pids[3];
        reap(limited(round % 2 ? reads : leaves_work), 0);
        for (int at = 0; at < 3; at++)
            pids[at] = limited(comes_later);
        serve(pids, 3);
        enum elver_lent_state state = back(&pair, 4 * (round + 1));
        CHECK(state == ELVER_LENT_FREE || state == ELVER_LENT_RESET);
        if (state == ELVER_LENT_RESET)
            connect_anew(&pair);
    }
    destroy(&pair);
}

static void holds(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    for (;;)
        pause();
}

/* A device is not closed while a child has a queue pair of it. */
static void closes_device(const char *name) {
    open_device(name);
    lend(READ_WRITE, 0);
    pid_t pid = limited(holds);
    taken(&pair);
    errno = 0;
    CHECK(ibv_close_device(context) == -1 && errno == EBUSY);
    kill(pid, SIGKILL);
    reap(pid, SIGKILL);
    CHECK(back(&pair, 1) == ELVER_LENT_FREE);
    CHECK(!ibv_close_device(context));
    CHECK(elver_lent_state(pair.lent.qp, NULL, NULL) == ELVER_LENT_NOT);
    open_device(name);
}

static void has_closed(void) {
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    CHECK(elver_take_qp(pair.lent.qp) == EBADF);
}

static void closes_all(void) {
    lend(READ_WRITE, 0);
    reap(limited(has_closed), 0);
    CHECK(elver_lent_state(pair.lent.qp, NULL, NULL) == ELVER_LENT_FREE);
    destroy(&pair);
}

/* Posts until nobody rings for it. */
static void works_on(void) {
    CHECK(!elver_take_qp(pair.lent.qp));
    int error;
    do {
        struct ibv_wc wc;
        error = post(pair.lent.qp, IBV_WR_RDMA_WRITE, shared->lent, shared->peer);
        ibv_poll_cq(pair.lent.cq, 1, &wc);
        shared->says = 1;
    } while (!error || error == ENOMEM);
    CHECK(error == ENODEV);
}

/* A child of a lender that executes another program is told that there is none. */
static void executes(const char *name) {
    lend(READ_WRITE, 0);
    char number[16];
    snprintf(number, sizeof number, "%d", limited(works_on));
    said(1);
    fflush(NULL);
    execlp("edges", "edges", name, number, NULL);
    CHECK(0);
}

/* A program that is linked the other way round is told so: its calls would not come by the library. */
static void is_linked_late(void) {
    pair = make_pair(READ_WRITE);
    CHECK(elver_lend_qp(pair.lent.qp, 0) == EOPNOTSUPP);
    destroy(&pair);
}

int main(int count, char **arguments) {
    if (count == 3 && !strcmp(arguments[2], "late")) {
        open_device(arguments[1]);
        is_linked_late();
        return 0;
    }
    if (count == 3) {
        reap(atoi(arguments[2]), 0);
        puts("a child of a lender that has executed another program");
        return 0;
    }
    CHECK(count == 2);
    open_device(arguments[1]);
    read_only_peer();
    puts("a peer that allows READs alone");
    slot_of_another();
    puts("a queue pair that another is lent in the place of");
    refusals();
    puts("WRs that can never be posted, and a state that is not the child's to change");
    receives_of_before();
    puts("a receive of before the lending");
    forked_in_reset();
    puts("a child that was forked while the queue pair was in RESET");
    forked_in_return();
    puts("children that were forked while it came back");
    closes_device(arguments[1]);
    puts("a device that is closed");
    closes_all();
    puts("a child that has closed all it inherited");
    executes(arguments[1]);
}
