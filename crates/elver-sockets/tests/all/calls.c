// Part of program.c: calls that the C library makes itself, that a signal interrupts, or that ask for nothing, against a
// server that gives back what it gets.

// A descriptor that was closed by a call that is not known has a number that the next one gets, which is the library's own.
static int closes_unseen(int port) {
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = connects(port);
    FILE *file = fdopen(fds[0], "r+");
    CHECK(file && fclose(file) == 0);
    CHECK(syscall(SYS_close, fds[1]) == 0);
    await_carried(fds[2]);
    CHECK(close(fds[2]) == 0);
    // And then one of the program's has it.
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    for (int way = 0; way < 2; way++) {
        int fd = connects(port);
        await_carried_ends(fd, 2 * way + 4);
        CHECK(syscall(SYS_close, fd) == 0);
        int next = way ? socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0) : dup(ends[0]);
        CHECK(next == fd && read(next, &byte, 1) == -1 && errno == EAGAIN);
        CHECK(way || (write(ends[1], "x", 1) == 1 && read(next, &byte, 1) == 1 && byte == 'x'));
    }
    return 0;
}

// Files of stdio whose descriptor was replaced by a connection: closed or opened anew they end it.
static int closes_stdio(int port) {
    char byte;
    for (int way = 0; way < 3; way++) {
        FILE *file = fopen("/dev/null", "r");
        int fd = connects(port), number = fileno(file), pair[2];
        await_carried_ends(fd, 2 * way + 2);
        CHECK(dup2(fd, number) == number && close(fd) == 0);
        if (way == 0) CHECK(fclose(file) == 0);
        else CHECK((way == 1 ? freopen : freopen64)("/dev/null", "r", file) == file && fileno(file) == number);
        if (way == 0) {
            // What has the number next is the program's.
            CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && (pair[0] == number || pair[1] == number));
            for (int i = 0; i < 2; i++) write_all(pair[i], "x", 1);
            for (int i = 0; i < 2; i++) CHECK(recv(pair[i], &byte, 1, MSG_DONTWAIT) == 1 && byte == 'x');
        } else {
            CHECK(read(number, &byte, 1) == 0 && fclose(file) == 0);
        }
    }
    // One that has no descriptor.
    FILE *file = fmemopen(NULL, 8, "r+");
    errno = 77;
    CHECK(file && fclose(file) == 0 && errno == 77);
    return 0;
}

// A daemon's first three descriptors are of no connection, whatever they were of.
static int becomes_a_daemon(int port) {
    char byte;
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    for (int fd = 0; fd < 2; fd++) CHECK(close(fd) == 0 && connects(port) == fd);
    await_carried_ends(0, 2);
    await_carried_ends(1, 4);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(daemon(1, 0) == 0);
        byte = read(0, &byte, 1) == 0 && write(1, "x", 1) == 1 ? 1 : 2;
        CHECK(write(ends[1], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 1);
    return close(0) | close(1);
}

// How many ends have said in the log that they have ended.
static int ends_said(void) {
    FILE *log = fopen(getenv("ELVER_STREAMS_LOG"), "r");
    int said = 0;
    char line[512];
    while (log && fgets(line, sizeof line, log)) said += strstr(line, " ended: ") != NULL;
    if (log) fclose(log);
    return said;
}

// ---- a signal's handler in the middle of a call that does not wait

static int closed_by_handler, replaced_by_handler, busy_in_handler, listener_in_handler;
static void *nowhere;

// Calls that would wait for what they interrupt.
static int is_told_of_deadlock(int fd) {
    char byte;
    struct pollfd entry = {fd, POLLIN, 0};
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    return epoll >= 0 && read(fd, &byte, 1) == -1 && errno == EDEADLK && write(fd, "!", 1) == -1 && errno == EDEADLK
        && poll(&entry, 1, -1) == -1 && errno == EDEADLK && shutdown(fd, SHUT_WR) == -1 && errno == EDEADLK
        && dup(fd) == -1 && errno == EDEADLK && dup2(fd, fd + 1) == -1 && errno == EDEADLK
        && fcntl(fd, F_DUPFD, 0) == -1 && errno == EDEADLK && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == -1
        && errno == EDEADLK && close(epoll) == 0;
}

// A connection that is made and accepted there stays with TCP.
static int goes_by_tcp(void) {
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    char byte = 0;
    int there = socket(AF_INET, SOCK_STREAM, 0), here = -1;
    if (getsockname(listener_in_handler, (void *)&at, &len) || connect(there, (void *)&at, len)) return 0;
    here = accept(listener_in_handler, NULL, NULL);
    return write(there, "t", 1) == 1 && read(here, &byte, 1) == 1 && byte == 't' && !close(here) && !close(there);
}

static void closes(int signal) {
    if (!is_told_of_deadlock(busy_in_handler) || !goes_by_tcp()) abort();
    int none = open("/dev/null", O_RDONLY);
    if (signal != SIGSEGV || none < 0 || close(closed_by_handler) || dup2(none, replaced_by_handler) < 0 || close(none)) abort();
    if (mprotect(nowhere, 4096, PROT_READ | PROT_WRITE)) abort();
}

// A handler may close descriptors, and put others in their place, and hangs by nothing else.
static int closes_in_a_handler(int port) {
    char byte;
    int fds[3];
    for (int i = 0; i < 3; i++) await_carried_ends(fds[i] = connects(port), 2 * i + 2);
    closed_by_handler = fds[0];
    replaced_by_handler = fds[1];
    busy_in_handler = fds[2];
    listener_in_handler = listens(0);
    nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(nowhere != MAP_FAILED && signal(SIGSEGV, closes) != SIG_ERR);
    write_all(fds[2], "x", 1);
    wait_in_poll(fds[2], POLLIN);
    CHECK(read(fds[2], nowhere, 1) == 1 && *(char *)nowhere == 'x');
    CHECK(read(fds[1], &byte, 1) == 0 && close(fds[1]) == 0);
    CHECK(close(fds[0]) == -1 && errno == EBADF);
    // Their peers hear of it.
    for (int ended = 0, round = 0; ended < 4; round++, ended = ends_said()) {
        CHECK(round < 100000);
        write_all(fds[2], "x", 1);
        read_all(fds[2], &byte, 1);
    }
    return close(fds[2]);
}

// ---- signals that come while a call looks

static _Atomic int handled, goes_on = 1;
static void handles(int signal) { handled += signal != 0; }

static void *keeps_busy(void *fd) {
    char byte = 1;
    while (goes_on) {
        write_all(*(int *)fd, &byte, 1);
        read_all(*(int *)fd, &byte, 1);
    }
    return NULL;
}

static void *is_interrupted(void *fd) {
    char byte;
    waiter = gettid();
    CHECK(read(*(int *)fd, &byte, 1) == -1 && errno == EINTR);
    return NULL;
}

// Until a thread sleeps for events.
static void await_poll(int tid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    for (int round = 0; round < 1000000; round++) {
        FILE *call = fopen(path, "r");
        CHECK(call && fgets(line, sizeof line, call) && fclose(call) == 0);
        if (atoi(line) == SYS_ppoll) return;
    }
    CHECK(!"the thread sleeps");
}

// A call that waits ends by a signal, also while others keep it awake.
static int interrupts(int port) {
    int busy = connects(port), idle = connects(port);
    await_carried_ends(busy, 2);
    await_carried_ends(idle, 4);
    struct sigaction action = {.sa_handler = handles};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    // Those that come before a wait which has no time, and that it lets through.
    sigset_t one, none, before;
    struct timespec now = {0, 0};
    struct pollfd entry = {idle, POLLIN, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(idle, &in);
    CHECK(sigemptyset(&none) == 0 && sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &one, &before) == 0);
    CHECK(raise(SIGUSR1) == 0 && ppoll(&entry, 1, &now, NULL) == 0 && handled == 0);
    CHECK(ppoll(&entry, 1, &now, &none) == -1 && errno == EINTR && handled == 1);
    CHECK(raise(SIGUSR1) == 0 && pselect(idle + 1, &in, NULL, NULL, &now, &none) == -1 && errno == EINTR && handled == 2);
    CHECK(ppoll(&entry, 1, &now, &none) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    pthread_t busy_thread, thread;
    CHECK(pthread_create(&busy_thread, NULL, keeps_busy, &busy) == 0);
    for (int round = 0; round < 100; round++) {
        struct timespec until;
        waiter = 0;
        CHECK(pthread_create(&thread, NULL, is_interrupted, &idle) == 0);
        while (!waiter) sched_yield();
        await_poll(waiter);
        // Wherever it is by now.
        for (uint64_t turns = drawn() % 100000; turns > 0; turns--) __asm__ volatile("");
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
        CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
        until.tv_sec += 60;
        CHECK(pthread_timedjoin_np(thread, NULL, &until) == 0);
    }
    // What was blocked before is, and nothing else.
    sigset_t after;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0);
    for (int signal = 1; signal < 32; signal++) CHECK(sigismember(&after, signal) == sigismember(&before, signal));
    goes_on = 0;
    CHECK(pthread_join(busy_thread, NULL) == 0);
    return close(busy) | close(idle);
}

// ---- calls that ask for nothing

// Reads and writes of no bytes do not wait, and of less than none are refused.
static void moves_nothing(int fd) {
    struct iovec empty[2] = {{NULL, 0}, {NULL, 0}};
    volatile int less = -1;
    CHECK(read(fd, NULL, 0) == 0 && write(fd, NULL, 0) == 0);
    for (int count = 0; count < 3; count++) {
        CHECK(readv(fd, empty, count) == 0 && preadv2(fd, empty, count, -1, 0) == 0);
        CHECK(writev(fd, empty, count) == 0 && pwritev2(fd, empty, count, -1, 0) == 0);
    }
    CHECK(readv(fd, empty, less) == -1 && errno == EINVAL);
    CHECK(preadv2(fd, empty, less, -1, 0) == -1 && errno == EINVAL);
    CHECK(writev(fd, empty, less) == -1 && errno == EINVAL);
    CHECK(pwritev2(fd, empty, less, -1, 0) == -1 && errno == EINVAL);
}

static int asks_for_nothing(int port) {
    int fd = connects(port);
    for (int round = 0; round < 4; round++) {
        if (round == 2) {
            CHECK(fcntl(fd, F_SETFL, 0) == 0);
            await_carried(fd);
        }
        moves_nothing(fd);
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    }
    return close(fd);
}
