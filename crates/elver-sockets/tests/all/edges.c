// Part of program.c: what programs do with connections beside reading and writing them.

// Reads until the end, behind one byte that it says.
static int drains(int port) {
    char byte = 1;
    ssize_t n;
    int fd = connects(port);
    write_all(fd, &byte, 1);
    while ((n = read(fd, &byte, 1)) > 0);
    CHECK(n == 0);
    return close(fd);
}

// ---- handlers of a fork, each of which uses a connection, or lets go of what it has no use for

static int fork_fd, fork_epoll;
static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int fork_goes_on = 1;

static void round_trip(void) {
    char byte = 7;
    write_all(fork_fd, &byte, 1);
    read_all(fork_fd, &byte, 1);
}

static void prepares(void) {
    CHECK(pthread_mutex_lock(&fork_mutex) == 0);
    round_trip();
}

static void parent_goes_on(void) {
    round_trip();
    CHECK(pthread_mutex_unlock(&fork_mutex) == 0);
}

static void child_lets_go(void) {
    CHECK(close(fork_epoll) == 0);
    CHECK((fork_epoll = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    CHECK(close(fork_fd) == 0);
}

// Has the connection for itself as long as it has the mutex.
static void *trips(void *none) {
    while (fork_goes_on) {
        CHECK(pthread_mutex_lock(&fork_mutex) == 0);
        round_trip();
        CHECK(pthread_mutex_unlock(&fork_mutex) == 0);
    }
    return none;
}

static int forks_with_handlers(int port) {
    pthread_t thread;
    int status;
    CHECK(pthread_atfork(prepares, parent_goes_on, child_lets_go) == 0);
    fork_fd = connects(port);
    fork_epoll = epoll_create1(EPOLL_CLOEXEC);
    await_carried(fork_fd);
    CHECK(pthread_create(&thread, NULL, trips, NULL) == 0);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    fork_goes_on = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    return close(fork_fd);
}

// ---- what is written when the process ends

static int farewell_fd = -1;

static void says_farewell(void) {
    char byte;
    if (farewell_fd < 0) return;
    write_all(farewell_fd, "!", 1);
    read_all(farewell_fd, &byte, 1);
    write_all(farewell_fd, "farewell", 8);
}

// Before the program has made a connection, as constructors of its libraries do.
__attribute__((constructor)) static void registers_farewell(void) { atexit(says_farewell); }

static int says_farewell_at_exit(int port) {
    int fd = connects(port);
    await_carried(fd);
    farewell_fd = fd;
    exit(0);
}

// Shut for reading before a stream carries it: it reads what came, and then an end.
static int is_deaf(int port) {
    char byte = 1;
    int fd = connects(port);
    CHECK(shutdown(fd, SHUT_RD) == 0);
    for (int round = 0, said = 0; said < 2; round++) {
        CHECK(round < 100000);
        write_all(fd, &byte, 1);
        usleep(100);
        said = carried_ends();
    }
    struct pollfd entry = {fd, POLLIN | POLLRDHUP, 0};
    CHECK(poll(&entry, 1, 0) == 1 && entry.revents == (POLLIN | POLLRDHUP));
    ssize_t n;
    char bytes[4096];
    while ((n = read(fd, bytes, sizeof bytes)) > 0);
    CHECK(n == 0);
    return close(fd);
}
