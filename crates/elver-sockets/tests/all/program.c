// Servers and clients that use TCP in the ways that programs do. They know nothing of what carries it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s does not hold (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static uint64_t seed;
static uint64_t drawn(void) { return seed = seed * 6364136223846793005u + 1442695040888963407u, seed >> 33; }
// The byte at a place of a connection's stream.
static unsigned char byte_at(uint64_t id, uint64_t at) { return (at * 2654435761u >> 7) + id * 31; }

static struct sockaddr_in address(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int listens(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = address(port);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (void *)&at, sizeof at) == 0);
    CHECK(listen(fd, 128) == 0);
    return fd;
}

static int connects_from(int own_port, int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in own = address(own_port), at = address(port);
    if (own_port) CHECK(bind(fd, (void *)&own, sizeof own) == 0);
    CHECK(connect(fd, (void *)&at, sizeof at) == 0);
    return fd;
}

static int connects(int port) { return connects_from(0, port); }

static void wait_in_poll(int fd, int events) {
    struct pollfd entry = {fd, events, 0};
    CHECK(poll(&entry, 1, 30000) == 1);
}

static void write_all(int fd, const void *from, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const char *)from + at, len - at);
        if (n < 0 && errno == EAGAIN) {
            wait_in_poll(fd, POLLOUT);
            continue;
        }
        CHECK(n > 0);
        at += n;
    }
}

static void read_all(int fd, void *to, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, (char *)to + at, len - at);
        CHECK(n > 0);
        at += n;
    }
}

// ---- servers: each gives back what it gets, until the end

static void echo_blocking(int fd) {
    char buf[5000];
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0) write_all(fd, buf, n);
    CHECK(n == 0);
    CHECK(close(fd) == 0);
}

static void *echo_thread(void *fd) { return echo_blocking((int)(long)fd), NULL; }

// What came and has not gone back.
struct held {
    char buf[4096];
    size_t from, to;
    int ended;
};

// Does what can be done without waiting; what to wait for, 0 if it is over.
static int serve(int fd, struct held *held) {
    for (;;) {
        if (held->from == held->to && !held->ended) {
            held->from = held->to = 0;
            ssize_t n = read(fd, held->buf, sizeof held->buf);
            if (n < 0 && errno == EAGAIN) return POLLIN;
            CHECK(n >= 0);
            held->to = n;
            held->ended = n == 0;
        }
        if (held->from == held->to) return 0;
        ssize_t n = write(fd, held->buf + held->from, held->to - held->from);
        if (n < 0 && errno == EAGAIN) return POLLOUT;
        CHECK(n > 0);
        held->from += n;
    }
}

#define FDS 1024
static void echo_epoll(int listener, int count, int edge, _Atomic int *served) {
    static struct held *all[FDS];
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0);
    while (*served < count) {
        struct epoll_event events[7];
        // Other processes may serve the last one.
        int n = epoll_wait(epoll, events, 7, 20);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                if ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0) continue;
                all[fd] = calloc(1, sizeof *all[fd]);
                event.events = edge ? EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP : EPOLLIN;
                event.data.fd = fd;
                CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
                continue;
            }
            int wanted = serve(fd, all[fd]);
            if (!wanted) {
                CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
                CHECK(close(fd) == 0);
                free(all[fd]);
                ++*served;
            } else if (!edge) {
                event.events = wanted == POLLIN ? EPOLLIN : EPOLLOUT;
                event.data.fd = fd;
                CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
            }
        }
    }
}

static void echo_polled(int listener, int count, int selects) {
    static struct held *all[FDS];
    static struct pollfd fds[FDS];
    int used = 1, served = 0;
    CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    fds[0] = (struct pollfd){listener, POLLIN, 0};
    while (served < count) {
        if (selects) {
            fd_set in, out;
            struct timeval time = {30, 0};
            int most = 0;
            FD_ZERO(&in);
            FD_ZERO(&out);
            for (int i = 0; i < used; i++) {
                FD_SET(fds[i].fd, fds[i].events == POLLIN ? &in : &out);
                if (fds[i].fd > most) most = fds[i].fd;
            }
            CHECK(select(most + 1, &in, &out, NULL, &time) > 0);
            for (int i = 0; i < used; i++) fds[i].revents = FD_ISSET(fds[i].fd, &in) || FD_ISSET(fds[i].fd, &out);
        } else {
            CHECK(poll(fds, used, 30000) > 0);
        }
        for (int i = used - 1; i > 0; i--) {
            if (!fds[i].revents) continue;
            if ((fds[i].events = serve(fds[i].fd, all[i]))) continue;
            CHECK(close(fds[i].fd) == 0);
            free(all[i]);
            used--;
            fds[i] = fds[used];
            all[i] = all[used];
            served++;
        }
        int fd = fds[0].revents ? accept4(listener, NULL, NULL, SOCK_NONBLOCK) : -1;
        if (fd >= 0) {
            all[used] = calloc(1, sizeof *all[used]);
            fds[used++] = (struct pollfd){fd, POLLIN, 0};
        }
    }
}

static int serves(const char *how, int port, int count) {
    int listener = listens(port);
    _Atomic int *served = mmap(NULL, sizeof *served, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(served != MAP_FAILED);
    if (!strcmp(how, "epoll")) return echo_epoll(listener, count, 0, served), 0;
    if (!strcmp(how, "edge")) return echo_epoll(listener, count, 1, served), 0;
    if (!strcmp(how, "poll")) return echo_polled(listener, count, 0), 0;
    if (!strcmp(how, "select")) return echo_polled(listener, count, 1), 0;
    if (!strcmp(how, "threads")) {
        pthread_t threads[FDS];
        for (int i = 0; i < count; i++)
            CHECK(pthread_create(&threads[i], NULL, echo_thread, (void *)(long)accept(listener, NULL, NULL)) == 0);
        for (int i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        return 0;
    }
    // A process for each connection, which the parent has accepted; or three that accept themselves.
    int forks = !strcmp(how, "forks"), children = forks ? count : 3, status;
    for (int i = 0; i < children; i++) {
        int fd = forks ? accept(listener, NULL, NULL) : -1;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            if (forks) echo_blocking(fd);
            else echo_epoll(listener, count, 0, served);
            exit(0);
        }
        if (forks) close(fd);
    }
    for (int i = 0; i < children; i++) CHECK(wait(&status) > 0 && status == 0);
    return 0;
}

// ---- a client of many connections at once, each byte compared

static int echoes(int port, int count, uint64_t total) {
    struct { int fd; uint64_t sent, heard; } all[FDS];
    for (int i = 0; i < count; i++) {
        all[i].fd = connects(port);
        all[i].sent = all[i].heard = 0;
        CHECK(fcntl(all[i].fd, F_SETFL, O_NONBLOCK) == 0);
    }
    for (int left = count; left > 0;) {
        struct pollfd fds[FDS];
        for (int i = 0; i < count; i++)
            fds[i] = (struct pollfd){all[i].fd, POLLIN | (all[i].sent < total ? POLLOUT : 0), 0};
        CHECK(poll(fds, count, 30000) > 0);
        for (int i = 0; i < count; i++) {
            unsigned char buf[9000];
            if (fds[i].revents & POLLOUT) {
                uint64_t len = drawn() % sizeof buf + 1;
                if (len > total - all[i].sent) len = total - all[i].sent;
                for (uint64_t j = 0; j < len; j++) buf[j] = byte_at(i, all[i].sent + j);
                struct iovec two[2] = {{buf, len / 3}, {buf + len / 3, len - len / 3}};
                ssize_t n = writev(all[i].fd, two, 2);
                CHECK(n > 0 || errno == EAGAIN);
                all[i].sent += n > 0 ? n : 0;
                if (all[i].sent == total) CHECK(shutdown(all[i].fd, SHUT_WR) == 0);
            }
            if (fds[i].revents & POLLIN) {
                ssize_t n = read(all[i].fd, buf, drawn() % sizeof buf + 1);
                CHECK(n >= 0 || errno == EAGAIN);
                for (ssize_t j = 0; j < n; j++) CHECK(buf[j] == byte_at(i, all[i].heard + j));
                all[i].heard += n > 0 ? n : 0;
                if (n == 0) {
                    CHECK(all[i].heard == total);
                    CHECK(close(all[i].fd) == 0);
                    all[i].fd = -1;
                    left--;
                }
            }
        }
    }
    return 0;
}

// ---- one connection, after it is carried

// How many ends have said in the log that a stream carries them.
static int carried_ends(void) {
    FILE *log = fopen(getenv("ELVER_STREAMS_LOG"), "r");
    int said = 0;
    char line[512];
    while (log && fgets(line, sizeof line, log)) said += strstr(line, "by a stream") != NULL;
    if (log) fclose(log);
    return said;
}

// Bytes to and fro until so many ends have said it.
static void await_carried_ends(int fd, int ends) {
    char byte = 1;
    for (int round = 0; round < 100000; round++) {
        write_all(fd, &byte, 1);
        read_all(fd, &byte, 1);
        if (carried_ends() >= ends) return;
    }
    CHECK(!"it is carried");
}

static void await_carried(int fd) { await_carried_ends(fd, 2); }

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

// Until a thread sleeps.
static void await_sleep(int tid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    for (int round = 0; round < 10000; round++) {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fgets(line, sizeof line, stat));
        fclose(stat);
        char *state = strrchr(line, ')');
        if (state && state[2] == 'S') return;
        usleep(1000);
    }
    CHECK(!"the thread sleeps");
}

static void *writes_later(void *fd) {
    await_sleep(getpid());
    write_all(*(int *)fd, "ghijkl", 6);
    return NULL;
}

// What a socket must do, against a server that gives back what it gets.
static int behaves(int port) {
    char buf[300000], big[300000];
    int fd = connects(port), bytes;
    await_carried(fd);
    // Looking at bytes takes none.
    write_all(fd, "abcdef", 6);
    wait_in_poll(fd, POLLIN);
    CHECK(recv(fd, buf, 3, MSG_PEEK) == 3 && !memcmp(buf, "abc", 3));
    // Also all of them, of which the second half comes later; it may be short if the time passes.
    pthread_t later;
    CHECK(pthread_create(&later, NULL, writes_later, &fd) == 0);
    CHECK(recv(fd, buf, 12, MSG_PEEK | MSG_WAITALL) == 12 && !memcmp(buf, "abcdefghijkl", 12));
    CHECK(pthread_join(later, NULL) == 0);
    CHECK(recv(fd, buf, 13, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT) == 12);
    CHECK(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 12);
    CHECK(recv(fd, buf, 12, MSG_WAITALL) == 12 && !memcmp(buf, "abcdefghijkl", 12));
    // Calls that have a place of a file, where it is none.
    struct iovec place = {"place", 5}, placed = {buf, 5};
    CHECK(pwritev2(fd, &place, 1, -1, 0) == 5 && pwritev2(fd, &place, 1, 0, 0) == -1 && errno == ESPIPE);
    wait_in_poll(fd, POLLIN);
    CHECK(preadv2(fd, &placed, 1, -1, 0) == 5 && !memcmp(buf, "place", 5));
    CHECK(preadv2(fd, &placed, 1, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
    // Bytes that nobody wants need no buffer.
    write_all(fd, "unwanted", 8);
    CHECK(recv(fd, NULL, 6, MSG_TRUNC | MSG_WAITALL) == 6 && recv(fd, buf, 2, MSG_WAITALL) == 2 && !memcmp(buf, "ed", 2));
    CHECK(ioctl(fd, FIONREAD, &bytes) == 0 && bytes == 0);
    // Nothing there: at once, in time, and by a descriptor that does not wait.
    CHECK(recv(fd, buf, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    struct timeval time = {0, 50000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    double began = now();
    CHECK(recv(fd, buf, 1, 0) == -1 && errno == EAGAIN && now() - began > 0.049);
    time.tv_usec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(read(fd, buf, 1) == -1 && errno == EAGAIN);
    struct pollfd entry = {fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&entry, 1, 0) == 1 && entry.revents == POLLOUT);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    // Copies of the descriptor are the same connection.
    int copy = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(copy >= 0 && third >= 100 && close(fd) == 0);
    CHECK(dup2(copy, fd) == fd && close(copy) == 0);
    write_all(third, "xyz", 3);
    CHECK(recv(fd, buf, 3, MSG_WAITALL) == 3 && !memcmp(buf, "xyz", 3));
    CHECK(close(third) == 0);
    // A message in parts, and who sent it is nobody.
    struct iovec parts[3] = {{"12", 2}, {"", 0}, {"345", 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == 5);
    struct sockaddr_in from;
    socklen_t from_len = sizeof from;
    wait_in_poll(fd, POLLIN);
    CHECK(recvfrom(fd, buf, 5, MSG_WAITALL, (void *)&from, &from_len) == 5 && !memcmp(buf, "12345", 5));
    CHECK(from_len == 0);
    // A file.
    FILE *file = tmpfile();
    for (size_t i = 0; i < sizeof big; i++) big[i] = byte_at(1, i);
    CHECK(fwrite(big, 1, sizeof big, file) == sizeof big && fflush(file) == 0);
    off_t at = 1000;
    CHECK(sendfile(fd, fileno(file), &at, 100000) == 100000 && at == 101000);
    CHECK(recv(fd, buf, 100000, MSG_WAITALL) == 100000 && !memcmp(buf, big + 1000, 100000));
    CHECK(splice(fd, NULL, fileno(file), NULL, 1, 0) == -1 && errno == EINVAL);
    // What the kernel says of the connection is what it always says.
    from_len = sizeof from;
    CHECK(getpeername(fd, (void *)&from, &from_len) == 0 && from.sin_port == htons(port));
    CHECK(send(fd, "!", 1, MSG_OOB) == -1 && errno == EOPNOTSUPP);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3) == -1 && errno == EOPNOTSUPP);
    // A child that uses its copy is told that it cannot, and its end harms nobody.
    int status;
    pid_t child = fork();
    if (child == 0) {
        CHECK(write(fd, "?", 1) == -1 && errno == ENOTCONN);
        CHECK(read(fd, buf, 1) == -1 && errno == ENOTCONN);
        CHECK(close(fd) == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = vfork();
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(system("exec true") == 0);
    write_all(fd, "still here", 10);
    CHECK(recv(fd, buf, 10, MSG_WAITALL) == 10 && !memcmp(buf, "still here", 10));
    // One direction ends, and the other goes on.
    write_all(fd, "last", 4);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(send(fd, "!", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(recv(fd, buf, 4, MSG_WAITALL) == 4 && !memcmp(buf, "last", 4));
    CHECK(read(fd, buf, 1) == 0 && read(fd, buf, 1) == 0);
    return close(fd);
}

// Says when it is carried; then its peer dies, and it hears of it.
// Waits in an epoll for one event of a connection.
static void told(int epoll, unsigned events, int fd) {
    struct epoll_event event;
    int count = epoll_wait(epoll, &event, 1, 10000);
    CHECK(count == 1 && event.data.u64 == 0xe1f00000ull + fd && event.events == events);
}

static void watch(int epoll, int operation, int fd, unsigned events) {
    struct epoll_event event = {.events = events, .data.u64 = 0xe1f00000ull + fd};
    CHECK(epoll_ctl(epoll, operation, fd, &event) == 0);
}

struct waiter {
    int epoll, fd;
    _Atomic int tid, told;
};

static void *waits_for_edges(void *of) {
    struct waiter *waiter = of;
    waiter->tid = gettid();
    for (int i = 0; i < 2; i++) {
        told(waiter->epoll, EPOLLIN, waiter->fd);
        waiter->told++;
    }
    return NULL;
}

// What runtimes do with epolls, against a server that gives back what it gets.
static int watches(int port) {
    char byte;
    // One epoll by two descriptors, as tokio has it: asked by one, and waited in by the other.
    int epoll = epoll_create1(EPOLL_CLOEXEC), copy = fcntl(epoll, F_DUPFD_CLOEXEC, 0);
    int fd = connects(port);
    watch(copy, EPOLL_CTL_ADD, fd, EPOLLIN);
    await_carried_ends(fd, 2);
    write_all(fd, "1", 1);
    told(epoll, EPOLLIN, fd);
    read_all(fd, &byte, 1);
    CHECK(close(copy) == 0);
    write_all(fd, "2", 1);
    told(epoll, EPOLLIN, fd);
    read_all(fd, &byte, 1);
    CHECK(close(fd) == 0);
    // A socket that was watched before it was connected, as Netty has it.
    fd = socket(AF_INET, SOCK_STREAM, 0);
    watch(epoll, EPOLL_CTL_ADD, fd, 0);
    struct sockaddr_in at = address(port);
    CHECK(connect(fd, (void *)&at, sizeof at) == 0);
    await_carried_ends(fd, 4);
    watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN);
    write_all(fd, "3", 1);
    told(epoll, EPOLLIN, fd);
    read_all(fd, &byte, 1);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
    CHECK(close(fd) == 0);
    // One that waits for edges hears of the next one also if another thread reads.
    fd = connects(port);
    await_carried_ends(fd, 6);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    struct waiter waiter = {epoll, fd};
    pthread_t thread;
    watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    CHECK(pthread_create(&thread, NULL, waits_for_edges, &waiter) == 0);
    CHECK(write(fd, "4", 1) == 1);
    while (waiter.told == 0) usleep(1000);
    await_sleep(waiter.tid);
    CHECK(read(fd, &byte, 1) == 1 && byte == '4');
    CHECK(read(fd, &byte, 1) == -1 && errno == EAGAIN);
    CHECK(write(fd, "5", 1) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(read(fd, &byte, 1) == 1 && byte == '5');
    // What the kernel told of once is not told of again by a stream that takes over.
    CHECK(close(fd) == 0);
    fd = connects(port);
    watch(epoll, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLONESHOT);
    told(epoll, EPOLLOUT, fd);
    await_carried_ends(fd, 8);
    struct epoll_event event;
    CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
    watch(epoll, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT);
    told(epoll, EPOLLOUT, fd);
    // Times that have more microseconds than a second.
    struct timeval time = {0, 1000001};
    CHECK(select(0, NULL, NULL, NULL, &time) == 0);
    return close(fd);
}

// Two threads that wait in one epoll before it has a connection of a stream: each is told, while the other does not come back.
struct pool {
    int epoll;
    _Atomic int told[FDS], waits[2];
};

static void *serves_one(void *of) {
    struct pool *pool = of;
    struct epoll_event event;
    static _Atomic int number;
    pool->waits[number++] = gettid();
    int count = epoll_wait(pool->epoll, &event, 1, 10000);
    CHECK(count == 1);
    pool->told[event.data.fd]++;
    // Until the other one has been told as well.
    for (int round = 0; round < 10000; round++) {
        int all = 0;
        for (int fd = 0; fd < FDS; fd++) all += pool->told[fd];
        if (all == 2) return NULL;
        usleep(1000);
    }
    CHECK(!"both are told");
    return NULL;
}

static int pools(int port) {
    static struct pool pool;
    int one = connects(port), other = connects(port);
    await_carried_ends(one, 2);
    await_carried_ends(other, 4);
    pool.epoll = epoll_create1(0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, serves_one, &pool) == 0);
        while (!pool.waits[i]) usleep(1000);
        await_sleep(pool.waits[i]);
    }
    for (int i = 0; i < 2; i++) {
        int fd = i ? other : one;
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
        CHECK(epoll_ctl(pool.epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    write_all(one, "1", 1);
    while (!pool.told[one]) usleep(1000);
    write_all(other, "2", 1);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pool.told[one] == 1 && pool.told[other] == 1);
    char byte;
    read_all(one, &byte, 1);
    read_all(other, &byte, 1);
    return close(one) | close(other);
}

// ---- what a socket says of how its connection ends, by TCP and by a stream alike

static int carries, pairs;

static void pair(int listener, int port, int *here, int *there) {
    char byte = 1;
    *here = connects(port);
    *there = accept(listener, NULL, NULL);
    CHECK(*there >= 0);
    pairs++;
    for (int round = 0; round < 100000; round++) {
        write_all(*here, &byte, 1);
        read_all(*there, &byte, 1);
        write_all(*there, &byte, 1);
        read_all(*here, &byte, 1);
        if (!carries) return;
        FILE *log = fopen(getenv("ELVER_STREAMS_LOG"), "r");
        int said = 0;
        char line[512];
        while (log && fgets(line, sizeof line, log)) said += strstr(line, "by a stream") != NULL;
        if (log) fclose(log);
        if (said >= 2 * pairs) return;
    }
    CHECK(!"it is carried");
}

// Until these events hold.
static void settle(int fd, int wanted) {
    for (int round = 0; round < 5000; round++) {
        struct pollfd entry = {fd, wanted, 0};
        CHECK(poll(&entry, 1, 100) >= 0);
        if ((entry.revents & wanted) == wanted) return;
        usleep(1000);
    }
    printf(" [never %x]", wanted);
}

static void polled(int fd) {
    static const int asked[] = {0, POLLIN, POLLOUT, POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP | POLLPRI | POLLRDNORM | POLLWRNORM};
    printf(" poll");
    for (int i = 0; i < 5; i++) {
        struct pollfd entry = {fd, asked[i], 0};
        int count = poll(&entry, 1, 0);
        printf(" %d:%x", count, entry.revents);
    }
    printf(" epoll");
    for (int i = 0; i < 5; i++) {
        int epoll = epoll_create1(0);
        struct epoll_event event = {.events = asked[i], .data.u64 = 7};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
        event.events = 0;
        int count = epoll_wait(epoll, &event, 1, 0);
        printf(" %d:%x", count, count ? event.events : 0);
        CHECK(close(epoll) == 0);
    }
    fd_set sets[3];
    for (int i = 0; i < 3; i++) {
        FD_ZERO(&sets[i]);
        FD_SET(fd, &sets[i]);
    }
    struct timeval now = {0, 0};
    int count = select(fd + 1, &sets[0], &sets[1], &sets[2], &now), bytes = -1;
    printf(" select %d:%d%d%d", count, FD_ISSET(fd, &sets[0]), FD_ISSET(fd, &sets[1]), FD_ISSET(fd, &sets[2]));
    CHECK(ioctl(fd, FIONREAD, &bytes) == 0);
    printf(" unread %d\n", bytes);
}

static void says(const char *what, int result) {
    if (result < 0) printf(" %s:%s", what, strerrorname_np(errno));
    else printf(" %s:%d", what, result);
}

static int peer_of_asked;

// Resets a connection when this process's first thread sleeps in a call of it.
static void *resets_later(void *none) {
    struct linger now = {1, 0};
    await_sleep(getpid());
    CHECK(setsockopt(peer_of_asked, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    CHECK(close(peer_of_asked) == 0);
    peer_of_asked = -1;
    return none;
}

// Sends more than there is room for, in one call or from a file, and is reset meanwhile.
static void is_reset_in_a_send(int fd, int by_file) {
    static char much[64 << 20];
    pthread_t thread;
    FILE *file = tmpfile();
    CHECK(file && ftruncate(fileno(file), sizeof much) == 0);
    CHECK(pthread_create(&thread, NULL, resets_later, NULL) == 0);
    ssize_t sent = by_file ? sendfile(fd, fileno(file), NULL, sizeof much) : send(fd, much, sizeof much, 0);
    CHECK(pthread_join(thread, NULL) == 0 && fclose(file) == 0);
    // How much there is room for is not compared.
    if (sent > 0 && sent < (ssize_t)sizeof much) printf(" sent:some");
    else says("sent", sent);
}

// What is asked of an end, a letter each.
static void asks(int fd, const char *all) {
    char buf[8];
    for (const char *one = all; *one; one++) {
        int error = 0;
        socklen_t len = sizeof error;
        switch (*one) {
        case 'p': polled(fd); break;
        case 'r': says("recv", recv(fd, buf, sizeof buf, MSG_DONTWAIT)); break;
        case 'a': says("all", recv(fd, buf, sizeof buf, MSG_WAITALL)); break;
        case 'd': says("discarded", recv(fd, NULL, 100000, MSG_WAITALL | MSG_TRUNC)); break;
        case 'l': is_reset_in_a_send(fd, 0); break;
        case 'k': says("peek", recv(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_PEEK)); break;
        case 'w': says("send", send(fd, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL)); break;
        case 's': says("shut", shutdown(fd, SHUT_WR)); break;
        case 'u': says("shut-read", shutdown(fd, SHUT_RD)); break;
        case 'S': says("shut-both", shutdown(fd, SHUT_RDWR)); break;
        case 'e':
            CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
            printf(" error:%s", error ? strerrorname_np(error) : "0");
        }
    }
}

// Does something to an end: written (5 bytes, or 65,536), closed, closed without mercy, and directions shut.
static void does(int *fd, char what) {
    struct linger none = {1, 0};
    static char large[65536];
    switch (what) {
    case 'L': write_all(*fd, large, sizeof large); break;
    case 'b': write_all(*fd, "bytes", 5); break;
    case 'R': CHECK(shutdown(*fd, SHUT_RD) == 0); break;
    case 'W': CHECK(shutdown(*fd, SHUT_WR) == 0); break;
    case 'B': CHECK(shutdown(*fd, SHUT_RDWR) == 0); break;
    case 'A': CHECK(setsockopt(*fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0); // and
    case 'C':
        CHECK(close(*fd) == 0);
        *fd = -1;
    }
}

static int compares(int port, int carried) {
    // What the peer does (with a dash before it: what this end does), what then holds, and what is asked.
    static const struct { const char *done; int holds; const char *asked; } cases[] = {
        {"", POLLOUT, "perkwrp"},
        {"b", POLLIN, "pkrrp"},
        {"W", POLLRDHUP, "perrwp"},
        {"bW", POLLRDHUP | POLLIN, "pkrrrp"},
        {"-W", POLLOUT, "perwsp"},
        {"-WW", POLLHUP, "perrwp"},
        {"W-W", POLLHUP, "perrwp"},
        {"bW-W", POLLHUP, "prrrp"},
        {"-R", POLLRDHUP, "perrwp"},
        {"b-R", POLLRDHUP | POLLIN, "pkrrp"},
        {"-B", POLLHUP, "perrwp"},
        {"C", POLLRDHUP, "perrp"},
        {"bC", POLLRDHUP | POLLIN, "perrp"},
        {"-WC", POLLHUP, "perrwp"},
        {"A", POLLERR, "prrwwp"},
        {"A", POLLERR, "peerrwp"},
        {"A", POLLERR, "pwwrp"},
        {"A", POLLERR, "psp"},
        {"bA", POLLERR, "pkrrrwp"},
        // What is shut has to be a connection.
        {"", POLLOUT, "uuSp"},
        {"W", POLLRDHUP, "usuSp"},
        {"-W", POLLOUT, "ssup"},
        {"-WW", POLLHUP, "usSp"},
        {"bW-W", POLLHUP, "susrp"},
        {"-B", POLLHUP, "Sup"},
        {"A", POLLERR, "usSp"},
        // What has failed behind a part is told by the next call.
        {"bA", POLLERR, "parrwp"},
        {"bA", POLLERR, "aeerwp"},
        {"LA", POLLERR, "pdrrwp"},
        {"", POLLOUT, "lprrwp"},
        {"", POLLOUT, "lewrp"},
        {"", POLLOUT, "lwwp"},
        {"-bC", POLLERR, "prrwp"},
        {"-bW", POLLRDHUP, "prp"},
        {"-bB", POLLRDHUP, "prp"},
    };
    int listener = listens(port);
    carries = carried;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int here, there, epoll = epoll_create1(0), own = 0;
        pair(listener, port, &here, &there);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = 7};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, here, &event) == 0);
        CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
        printf("%s %s", cases[i].done, cases[i].asked);
        for (const char *what = cases[i].done; *what; what++) {
            if (*what == '-') {
                own = 1;
                continue;
            }
            does(own ? &here : &there, *what);
            // It has arrived before the next thing is done.
            if (*what == 'b') settle(own ? there : here, POLLIN);
            for (int bytes = 0; *what == 'L' && bytes < 65536;) CHECK(ioctl(here, FIONREAD, &bytes) == 0);
            own = 0;
        }
        settle(here, cases[i].holds);
        event.events = 0;
        int count = epoll_wait(epoll, &event, 1, 0);
        printf(" edge %d:%x", count, count ? event.events : 0);
        count = epoll_wait(epoll, &event, 1, 0);
        printf(" %d:%x", count, count ? event.events : 0);
        peer_of_asked = there;
        asks(here, cases[i].asked);
        close(here);
        close(peer_of_asked);
        close(epoll);
    }
    // The kernel's own sendfile loses what failed behind a part.
    int here;
    pair(listener, port, &here, &peer_of_asked);
    is_reset_in_a_send(here, 1);
    CHECK(!carried || (send(here, "!", 1, MSG_NOSIGNAL) == -1 && errno == ECONNRESET));
    puts("");
    return 0;
}

// ---- threads that are cancelled, and calls that are jumped out of

static int idle_pipe[2], idle_epoll, idle_socket;
static _Atomic int idle_thread;

static void *idles(void *how) {
    char byte;
    struct pollfd entry = {idle_pipe[0], POLLIN, 0};
    struct epoll_event event;
    idle_thread = gettid();
    switch ((long)how) {
    case 0: CHECK(read(idle_pipe[0], &byte, 1) < 0); break;
    case 1: CHECK(poll(&entry, 1, -1) < 0); break;
    case 2: CHECK(epoll_wait(idle_epoll, &event, 1, -1) < 0); break;
    case 3: CHECK(accept(idle_socket, NULL, NULL) < 0); break;
    case 4: CHECK(recv(idle_socket, &byte, 1, 0) < 0); break;
    case 5: CHECK(select(0, NULL, NULL, NULL, NULL) < 0); break;
    }
    return NULL;
}

static void cancel_idle(long how) {
    pthread_t thread;
    void *result;
    idle_thread = 0;
    CHECK(pthread_create(&thread, NULL, idles, (void *)how) == 0);
    while (!idle_thread) usleep(1000);
    await_sleep(idle_thread);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    fprintf(stderr, "cancelled %ld\n", how);
}

static sigjmp_buf back;
static void jumps(int signal) { siglongjmp(back, signal); }

// Ends threads in calls that wait: of what is the kernel's, and of a connection that is carried.
static int cancels(int port) {
    char byte;
    CHECK(pipe(idle_pipe) == 0);
    idle_epoll = epoll_create1(0);
    idle_socket = listens(0);
    for (long how = 0; how < 4; how++) cancel_idle(how);
    cancel_idle(5);
    idle_socket = connects(port);
    await_carried(idle_socket);
    cancel_idle(4);
    // What was left is nothing that others wait for.
    write_all(idle_socket, "1", 1);
    read_all(idle_socket, &byte, 1);
    signal(SIGALRM, jumps);
    if (!sigsetjmp(back, 1)) {
        struct itimerval soon = {{0, 0}, {0, 100000}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        read(idle_socket, &byte, 1);
        CHECK(!"it comes back");
    }
    write_all(idle_socket, "2", 1);
    read_all(idle_socket, &byte, 1);
    return close(idle_socket);
}

static void ends(int signal) { _exit(signal == SIGSEGV ? 0 : 1); }

// Ends in the handler of a signal that comes in the middle of a call.
static int crashes(int port) {
    int fd = connects(port);
    await_carried(fd);
    signal(SIGSEGV, ends);
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    write_all(fd, "?", 1);
    wait_in_poll(fd, POLLIN);
    read(fd, nowhere, 1);
    return 1;
}

// Reads a hundred bytes in one call.
static int reads_all(int port) {
    char buf[100];
    int fd = connects(port);
    CHECK(recv(fd, buf, sizeof buf, MSG_WAITALL) == sizeof buf);
    for (int i = 0; i < 100; i++) CHECK(buf[i] == i);
    return close(fd);
}

static int bereaved(int port) {
    char byte;
    int fd = connects(port), epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, told;
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    await_carried(fd);
    puts("carried");
    fflush(stdout);
    CHECK(epoll_wait(epoll, &told, 1, 30000) == 1);
    CHECK(read(fd, &byte, 1) == -1 && errno == ECONNRESET);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(fd, "!", 1) == -1 && (errno == EPIPE || errno == ECONNRESET));
    // Waits sleep, beside what that node carried and without it: its socket woke them without end.
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    int listener = listens(0);
    CHECK(getsockname(listener, (void *)&at, &len) == 0);
    for (int round = 0; round < 2; round++) {
        // Whose other end says nothing.
        int other = connects(ntohs(at.sin_port));
        clock_t before = clock();
        struct pollfd entry = {.fd = other, .events = POLLIN};
        CHECK(poll(&entry, 1, 1000) == 0);
        CHECK(clock() - before < CLOCKS_PER_SEC / 2);
        close(other);
        if (!round) close(fd);
    }
    return 0;
}

// Says something and ends without closing: it arrives all the same.
static int blurts(int port, const char *how) {
    static char big[100000];
    int fd = connects(port);
    await_carried(fd);
    write_all(fd, big, sizeof big);
    if (!strcmp(how, "exit")) exit(0);
    if (!strcmp(how, "quick_exit")) quick_exit(0);
    _exit(0);
}

// Bytes until the end, counted, of one connection that is echoed until it is carried.
static int counts(int port) {
    int fd = accept(listens(port), NULL, NULL);
    static char buf[65536];
    uint64_t all = 0;
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0) {
        all += n;
        if (n == 1) write_all(fd, buf, 1);
    }
    CHECK(n == 0);
    printf("%lu\n", all);
    return 0;
}

// Connections one after the other, each ended when it may just come to be carried: some round trips, then bytes, then the
// end. How many bytes were sent in all.
static int hurries(int port, int count) {
    static char big[30000];
    uint64_t all = 0;
    memset(big, 2, sizeof big);
    for (int i = 0; i < count; i++) {
        int fd = connects(port);
        char byte = 1;
        uint64_t rounds = drawn() % 60, len = drawn() % sizeof big;
        for (uint64_t round = 0; round < rounds; round++) {
            write_all(fd, &byte, 1);
            read_all(fd, &byte, 1);
        }
        write_all(fd, big, len);
        CHECK(close(fd) == 0);
        all += rounds + len;
    }
    printf("%lu\n", all);
    return 0;
}

// The other end of these: gives each 1 back, and counts all.
static int tallies(int port, int count) {
    static char buf[65536];
    int listener = listens(port);
    uint64_t all = 0;
    for (int i = 0; i < count; i++) {
        int fd = accept(listener, NULL, NULL);
        ssize_t n;
        while ((n = read(fd, buf, sizeof buf)) > 0) {
            all += n;
            if (buf[0] == 1) write_all(fd, buf, 1);
        }
        CHECK(n == 0 && close(fd) == 0);
    }
    printf("%lu\n", all);
    return 0;
}

// Round trips of a byte for so many milliseconds, after this end's port was said.
static int pings(int port, int millis, int own_port) {
    char byte = 0, answer;
    int fd = connects_from(own_port, port);
    double until = now() + millis / 1e3;
    do {
        byte++;
        write_all(fd, &byte, 1);
        read_all(fd, &answer, 1);
        CHECK(answer == byte);
        if (byte == 1) {
            puts("connected");
            fflush(stdout);
        }
    } while (now() < until);
    return close(fd);
}

// One who is no end of a connection, and takes the name of one: says hello and offers as soon as the other end is
// there, and tells whether he was told a secret. The other end's name, and his.
static int intrudes(const char *other, const char *own) {
    struct sockaddr_un at = {.sun_family = AF_UNIX}, there = {.sun_family = AF_UNIX};
    strcpy(at.sun_path + 1, own);
    strcpy(there.sun_path + 1, other);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), told = 0;
    socklen_t at_len = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(own);
    socklen_t there_len = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(other);
    CHECK(bind(fd, (void *)&at, at_len) == 0);
    puts("there");
    fflush(stdout);
    char offer[50] = "ELVTCP\1\2", heard[100];
    int met = 0;
    for (double until = now() + 10; now() < until && !told;) {
        ssize_t sent = sendto(fd, "ELVTCP\1\1", 8, 0, (void *)&there, there_len);
        sendto(fd, offer, sizeof offer, 0, (void *)&there, there_len);
        ssize_t n = recv(fd, heard, sizeof heard, 0);
        told += n > 8;
        if (sent > 0 && !met++) until = now() + 2;
        poll(0, 0, 1);
    }
    puts(told ? "told" : "not told");
    return 0;
}

#include "direct.c"
#include "edges.c"
#include "readiness.c"
#include "calls.c"
#include "spawn.c"

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    int port = atoi(argv[2]);
    if (!strcmp(argv[1], "serve")) return serves(argv[3], port, atoi(argv[4]));
    if (!strcmp(argv[1], "behave")) return behaves(port);
    if (!strcmp(argv[1], "watch")) return watches(port);
    if (!strcmp(argv[1], "pool")) return pools(port);
    if (!strcmp(argv[1], "compare")) return compares(port, !strcmp(argv[3], "carried"));
    if (!strcmp(argv[1], "cancel")) return cancels(port);
    if (!strcmp(argv[1], "crash")) return crashes(port);
    if (!strcmp(argv[1], "read-all")) return reads_all(port);
    if (!strcmp(argv[1], "bereaved")) return bereaved(port);
    if (!strcmp(argv[1], "blurt")) return blurts(port, argv[3]);
    if (!strcmp(argv[1], "intrude")) return intrudes(argv[2], argv[3]);
    if (!strcmp(argv[1], "tally")) return tallies(port, atoi(argv[3]));
    if (!strcmp(argv[1], "hurry")) return seed = atoll(argv[4]), hurries(port, atoi(argv[3]));
    if (!strcmp(argv[1], "ping")) return pings(port, atoi(argv[3]), argc > 4 ? atoi(argv[4]) : 0);
    if (!strcmp(argv[1], "count")) return counts(port);
    if (!strcmp(argv[1], "drain")) return drains(port);
    if (!strcmp(argv[1], "fork-handlers")) return forks_with_handlers(port);
    if (!strcmp(argv[1], "farewell")) return says_farewell_at_exit(port);
    if (!strcmp(argv[1], "reuse")) return reuses(port);
    if (!strcmp(argv[1], "cannot")) return cannot(port);
    if (!strcmp(argv[1], "close-all")) return closes_all(port);
    if (!strcmp(argv[1], "close-unseen")) return closes_unseen(port);
    if (!strcmp(argv[1], "close-stdio")) return closes_stdio(port);
    if (!strcmp(argv[1], "daemon")) return becomes_a_daemon(port);
    if (!strcmp(argv[1], "handler-closes")) return closes_in_a_handler(port);
    if (!strcmp(argv[1], "interrupt")) return interrupts(port);
    if (!strcmp(argv[1], "nothing")) return asks_for_nothing(port);
    if (!strcmp(argv[1], "deaf")) return is_deaf(port);
    if (!strcmp(argv[1], "crowd")) return crowds_an_epoll(port);
    if (!strcmp(argv[1], "heir")) return serves_an_heir(port);
    if (!strcmp(argv[1], "shared")) return shares(port);
    if (!strcmp(argv[1], "select-in-time")) return selects_in_time(port);
    if (!strcmp(argv[1], "ends-behind-all")) return ends_behind_all(port);
    if (!strcmp(argv[1], "edges-of-more")) return tells_edges_of_more(port);
    if (!strcmp(argv[1], "close-copy")) return closes_a_copy(port);
    if (!strcmp(argv[1], "no-epoll")) return asks_what_is_no_epoll(port);
    if (!strcmp(argv[1], "gather")) return gathers(port, atoi(argv[3]), atoi(argv[4]));
    if (!strcmp(argv[1], "relay")) return relays();
    if (!strcmp(argv[1], "inetd")) return has_others_serve(port, argv[0]);
    if (!strcmp(argv[1], "inetd-client")) return is_served_by_others(port);
    if (!strcmp(argv[1], "again")) return connects_again(port);
    if (!strcmp(argv[1], "by-number")) return calls_by_number(port);
    if (!strcmp(argv[1], "clone")) return clones(port);
    if (!strcmp(argv[1], "closed-unseen")) return closes_by_none(port);
    CHECK(!strcmp(argv[1], "echo"));
    seed = atoll(argv[5]);
    return echoes(port, atoi(argv[3]), atoll(argv[4]));
}
