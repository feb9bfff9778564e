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

// ---- numbers of descriptors that are another's when a call comes back

static char many[8 << 20];
static _Atomic int waiter;
static _Atomic int came_back;

static void *waits_in_read(void *fd) {
    char bytes[6];
    waiter = gettid();
    CHECK(read(*(int *)fd, bytes, sizeof bytes) == -1 && errno == EBADF);
    came_back = 1;
    return NULL;
}

static void *waits_in_write(void *fd) {
    waiter = gettid();
    CHECK(write(*(int *)fd, many, sizeof many) < (ssize_t)sizeof many);
    came_back = 1;
    return NULL;
}

static void *waits_in_epoll(void *epoll) {
    struct epoll_event event;
    waiter = gettid();
    CHECK(epoll_wait(*(int *)epoll, &event, 1, 30000) == -1 && errno == EBADF);
    came_back = 1;
    return NULL;
}

static pthread_t waits(void *(*how)(void *), int *fd) {
    pthread_t thread;
    waiter = came_back = 0;
    CHECK(pthread_create(&thread, NULL, how, fd) == 0);
    while (!waiter) usleep(1000);
    await_sleep(waiter);
    return thread;
}

static void await_return(pthread_t thread, int other) {
    char bytes[64];
    for (int round = 0; !came_back && round < 20000; round++) {
        CHECK(recv(other, bytes, sizeof bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        usleep(1000);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(other, bytes, sizeof bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

// Puts another socket in a connection's place while a thread waits in a call of that.
static int reuses(int port) {
    char bytes[6];
    int pair[2], fd = connects(port), second = connects(port);
    await_carried(fd);
    await_carried_ends(second, 4);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pthread_t thread = waits(waits_in_read, &fd);
    CHECK(dup2(pair[0], fd) == fd);
    CHECK(send(pair[1], "stolen", 6, 0) == 6);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(fd, bytes, 6, MSG_DONTWAIT) == 6 && !memcmp(bytes, "stolen", 6));
    // An epoll whose number is another's.
    int epoll = epoll_create1(0), other = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, second, &event) == 0);
    thread = waits(waits_in_epoll, &epoll);
    CHECK(dup2(other, epoll) == epoll);
    CHECK(epoll_ctl(other, EPOLL_CTL_ADD, pair[0], &event) == 0);
    CHECK(send(pair[1], "stolen", 6, 0) == 6);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(fd, bytes, 6, MSG_DONTWAIT) == 6);
    // The peer gives bytes back that nobody reads, so that at last neither end can write.
    thread = waits(waits_in_write, &second);
    CHECK(dup2(pair[0], second) == second);
    await_return(thread, pair[1]);
    return 0;
}

// ---- what a stream cannot do

// Hands a descriptor to another process, by this way or that.
static ssize_t hands_over(int to, int fd, int many) {
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {{0}};
    struct iovec byte = {"x", 1};
    struct mmsghdr message = {{.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control}};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message.msg_hdr);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return many ? sendmmsg(to, &message, 1, 0) : sendmsg(to, &message.msg_hdr, 0);
}

// Against a server that gives back what it gets.
static int cannot(int port) {
    char byte;
    int fd = connects(port), fresh = connects(port), pair[2], one = 1;
    struct iovec room = {&byte, 1};
    struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1};
    await_carried(fd);
    write_all(fd, "b", 1);
    wait_in_poll(fd, POLLIN);
    // Errors and urgent bytes there are none, and the byte that came is none of them.
    CHECK(recvmsg(fd, &message, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
    CHECK(recv(fd, &byte, 1, MSG_ERRQUEUE | MSG_TRUNC) == -1 && errno == EAGAIN);
    CHECK(recv(fd, &byte, 1, MSG_OOB) == -1 && errno == EINVAL);
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == 1 && byte == 'b');
    CHECK(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == -1 && errno == EOPNOTSUPP);
    // Bytes that nobody wants, more than are discarded at once, and none of them anywhere.
    struct iovec nowhere[2] = {{NULL, 3}, {NULL, 100000 - 3}};
    struct msghdr unwanted = {.msg_iov = nowhere, .msg_iovlen = 2};
    for (int by_message = 0; by_message < 2; by_message++) {
        write_all(fd, many, 100000);
        write_all(fd, "!", 1);
        int all = MSG_TRUNC | MSG_WAITALL;
        CHECK((by_message ? recvmsg(fd, &unwanted, all) : recv(fd, NULL, 100000, all)) == 100000);
        CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!');
    }
    // Without it the flag says nothing.
    CHECK(send(fd, "c", 1, MSG_ZEROCOPY) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'c');
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int many = 0; many < 2; many++) CHECK(hands_over(pair[0], fd, many) == -1 && errno == EOPNOTSUPP);
    CHECK(recv(pair[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    write_all(fd, "d", 1);
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'd');
    // One that has not been agreed on stays with TCP.
    CHECK(hands_over(pair[0], fresh, 1) == 1);
    return close(fresh) | close(fd);
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

// ---- descriptors that the program has not opened

static void *answers_later(void *fd) {
    char byte = 3;
    await_sleep(getpid());
    write_all(*(int *)fd, &byte, 1);
    return NULL;
}

// A round trip whose first half another thread makes when this one sleeps.
static void sleeps_for_one(int fd) {
    pthread_t later;
    char byte;
    CHECK(pthread_create(&later, NULL, answers_later, &fd) == 0);
    read_all(fd, &byte, 1);
    CHECK(byte == 3 && pthread_join(later, NULL) == 0);
}

// Closes all descriptors but that of a connection, in each of the ways, and gives their numbers to pipes.
static int closes_all(int port) {
    int pipes[8][2];
    char byte;
    int fd = connects(port);
    await_carried(fd);
    sleeps_for_one(fd);
    CHECK(close_range(fd + 1, ~0U, 0) == 0);
    closefrom(fd + 1);
    for (int other = fd + 1; other < 5000; other++) CHECK(close(other) == -1 && errno == EBADF);
    for (int i = 0; i < 8; i++) CHECK(pipe(pipes[i]) == 0);
    for (int i = 0; i < 3; i++) sleeps_for_one(fd);
    for (int i = 0; i < 8; i++) {
        CHECK(fcntl(pipes[i][0], F_SETFL, O_NONBLOCK) == 0);
        CHECK(read(pipes[i][0], &byte, 1) == -1 && errno == EAGAIN);
    }
    return close(fd);
}

// ---- addresses that are another connection's

static int is_name_taken(const char *name) {
    char line[512];
    int taken = 0;
    FILE *names = fopen("/proc/net/unix", "r");
    CHECK(names);
    while (fgets(line, sizeof line, names)) taken |= strstr(line, name) != NULL;
    CHECK(fclose(names) == 0);
    return taken;
}

// Reads a byte from a connection that is reset then, and gives back what it gets from another one of the same addresses,
// which it accepts only when that has been looked for.
static int serves_an_heir(int port) {
    char name[128], byte;
    int listener = listens(port);
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    int first = accept(listener, (void *)&peer, &len);
    CHECK(read(first, &byte, 1) == 1);
    struct pollfd entry = {first, 0, 0};
    CHECK(poll(&entry, 1, 30000) == 1 && entry.revents & POLLHUP);
    snprintf(name, sizeof name, "elver-tcp/connected/127.0.0.1:%d-127.0.0.1:%d", ntohs(peer.sin_port), port);
    for (int round = 0; !is_name_taken(name); round++) {
        CHECK(round < 10000);
        usleep(1000);
    }
    CHECK(recv(first, &byte, 1, MSG_DONTWAIT) == -1 && errno == ECONNRESET);
    // It is heard, and gives its own name up, whatever it takes the other end for.
    snprintf(name, sizeof name, "elver-tcp/accepted/127.0.0.1:%d-127.0.0.1:%d", ntohs(peer.sin_port), port);
    while (is_name_taken(name)) CHECK(recv(first, &byte, 1, MSG_DONTWAIT) == 0);
    int second = accept(listener, NULL, NULL);
    struct timeval time = {10, 0};
    CHECK(setsockopt(second, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    echo_blocking(second);
    CHECK(recv(first, &byte, 1, MSG_DONTWAIT) == 0);
    return close(first);
}

// ---- sockets that others have as well before they are connected

// Round trips until it is said of so many connections how they go.
static void await_decided(int fd, int wanted) {
    char byte = 1, line[512];
    for (int said = 0; said < wanted;) {
        write_all(fd, &byte, 1);
        read_all(fd, &byte, 1);
        FILE *log = fopen(getenv("ELVER_STREAMS_LOG"), "r");
        for (said = 0; log && fgets(line, sizeof line, log);) said += strstr(line, " Connector: by ") != NULL;
        if (log) fclose(log);
    }
}

static int receives_a_descriptor(int from) {
    union { char space[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    char byte;
    int fd;
    struct iovec room = {&byte, 1};
    struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(recvmsg(from, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// Each in another way: by a copy, by a fork, by a message, and by a file of stdio.
static int shares(int port) {
    struct sockaddr_in at = address(port);
    struct timeval time = {10, 0};
    char byte = 5;
    for (int way = 0; way < 4; way++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), copy = -1, pair[2], status;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        pid_t child = -1;
        FILE *file = NULL;
        switch (way) {
        case 0: copy = dup(fd); break;
        case 1:
            if ((child = fork()) == 0) {
                CHECK(read(pair[1], &byte, 1) == 1);
                write_all(fd, &byte, 1);
                read_all(fd, &byte, 1);
                exit(0);
            }
            CHECK(child > 0);
            break;
        case 2:
            CHECK(hands_over(pair[0], fd, 0) == 1);
            copy = receives_a_descriptor(pair[1]);
            break;
        case 3: file = fdopen(fd, "w");
        }
        CHECK(connect(fd, (void *)&at, sizeof at) == 0);
        await_decided(fd, way + 1);
        if (child > 0) {
            CHECK(write(pair[0], "g", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
        } else if (file) {
            CHECK(fputc('s', file) == 's' && fflush(file) == 0 && read(fd, &byte, 1) == 1 && byte == 's');
        } else {
            write_all(copy, &byte, 1);
            read_all(fd, &byte, 1);
            CHECK(close(copy) == 0);
        }
        CHECK((file ? fclose(file) : close(fd)) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    }
    return 0;
}

// Connects a socket to nobody, and then to a server: an epoll has it all the while.
static int connects_again(int port) {
    struct sockaddr_in at = address(port), nobody = address(0);
    int dead = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error, result;
    socklen_t len = sizeof nobody;
    CHECK(bind(dead, (void *)&nobody, len) == 0 && getsockname(dead, (void *)&nobody, &len) == 0);
    int epoll = epoll_create1(0);
    watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    CHECK(connect(fd, (void *)&nobody, sizeof nobody) == -1 && errno == EINPROGRESS);
    wait_in_poll(fd, POLLOUT);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, (len = sizeof error, &len)) == 0 && error == ECONNREFUSED);
    // The first try of the kernel's tells of the former.
    while ((result = connect(fd, (void *)&at, sizeof at)) == -1 && errno == ECONNABORTED);
    CHECK(result == 0 || errno == EINPROGRESS);
    wait_in_poll(fd, POLLOUT);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    await_carried(fd);
    char byte;
    write_all(fd, "a", 1);
    told(epoll, EPOLLIN, fd);
    read_all(fd, &byte, 1);
    return close(fd);
}

// ---- many connections

// Reads a byte from each of so many connections, with so many descriptors in all.
static int gathers(int port, int count, int limit) {
    struct rlimit most = {limit, limit};
    char byte;
    CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
    int listener = listens(port);
    for (int i = 0; i < count; i++) {
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        read_all(fd, &byte, 1);
    }
    return 0;
}
