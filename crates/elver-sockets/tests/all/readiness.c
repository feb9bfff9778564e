// Part of program.c: what is told of connections that are carried, against a server that gives back what it gets.

// An epoll's events are one at a time, and a connection always has one.
static int crowds_an_epoll(int port) {
    int fd = connects(port), epoll = epoll_create1(0), ends[2], told_pipe = 0, told_fd = 0;
    await_carried(fd);
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    event = (struct epoll_event){.events = EPOLLIN, .data.fd = ends[0]};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    for (int round = 0; round < 100; round++) {
        CHECK(epoll_wait(epoll, &event, 1, 30000) == 1);
        if (event.data.fd == fd) told_fd++;
        else told_pipe++;
    }
    CHECK(told_pipe >= 10 && told_fd >= 10);
    return close(fd);
}

// An end of the kernel's that no set means does not end a select.
static int selects_in_time(int port) {
    int fd = connects(port), ends[2];
    await_carried(fd);
    CHECK(pipe(ends) == 0 && close(ends[1]) == 0);
    fd_set in, except;
    FD_ZERO(&in);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(ends[0], &except);
    struct timeval time = {0, 300000};
    double began = now();
    CHECK(select(FDS, &in, NULL, &except, &time) == 0 && now() - began > 0.299);
    CHECK(!FD_ISSET(fd, &in) && !FD_ISSET(ends[0], &except));
    // It is one for who asks to read.
    FD_SET(fd, &in);
    FD_SET(ends[0], &in);
    time.tv_sec = 30;
    CHECK(select(FDS, &in, NULL, NULL, &time) == 1 && FD_ISSET(ends[0], &in) && !FD_ISSET(fd, &in));
    return close(fd);
}

// An epoll has a connection as long as any copy of it is open, by the one that it was asked about.
static int closes_a_copy(int port) {
    char byte;
    struct epoll_event event;
    for (int carried = 0; carried < 2; carried++) {
        int epoll = epoll_create1(0), fd = connects(port), edges = epoll_create1(0);
        if (carried) await_carried(fd);
        watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
        watch(edges, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
        int copy = dup(fd), third = dup(fd);
        CHECK(close(fd) == 0);
        for (int round = 0; round < 2; round++) {
            write_all(copy, "x", 1);
            told(epoll, EPOLLIN, fd);
            told(edges, EPOLLIN, fd);
            read_all(copy, &byte, 1);
            CHECK(recv(copy, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        }
        // Beside it another copy, whose number is known.
        watch(epoll, EPOLL_CTL_ADD, copy, EPOLLOUT);
        told(epoll, EPOLLOUT, copy);
        CHECK(close(copy) == 0);
        told(epoll, EPOLLOUT, copy);
        CHECK(close(third) == 0);
        CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
        CHECK(close(epoll) == 0 && close(edges) == 0);
    }
    return 0;
}

// The kernel refuses what is no epoll, and harms it not.
static int asks_what_is_no_epoll(int port) {
    char byte = 1;
    int fd = connects(port), other = connects(port), ends[2];
    await_carried_ends(fd, 2);
    await_carried_ends(other, 4);
    CHECK(pipe(ends) == 0 && close(ends[1]) == 0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(ends[0], EPOLL_CTL_ADD, fd, &event) == -1 && errno == EINVAL);
    CHECK(epoll_ctl(other, EPOLL_CTL_ADD, fd, &event) == -1 && errno == EINVAL);
    CHECK(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event) == -1 && errno == EINVAL);
    CHECK(epoll_ctl(ends[1], EPOLL_CTL_ADD, fd, &event) == -1 && errno == EBADF);
    write_all(other, &byte, 1);
    read_all(other, &byte, 1);
    return close(fd) | close(other);
}

static void *waits_for_more(void *of) {
    struct waiter *waiter = of;
    waiter->tid = gettid();
    told(waiter->epoll, EPOLLIN, waiter->fd);
    return NULL;
}

// Who waits for edges hears of each byte that comes, also of one behind another that nobody has read.
static int tells_edges_of_more(int port) {
    char bytes[8];
    int fd = connects(port), epoll = epoll_create1(0);
    struct epoll_event event;
    await_carried(fd);
    watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    for (int count = 1; count < 5; count++) {
        write_all(fd, "x", 1);
        told(epoll, EPOLLIN, fd);
        CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
    }
    // Also one who sleeps by then.
    struct waiter waiter = {epoll, fd};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits_for_more, &waiter) == 0);
    while (!waiter.tid) usleep(1000);
    await_sleep(waiter.tid);
    write_all(fd, "x", 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(fd, bytes, 5, MSG_WAITALL) == 5);
    return close(fd);
}

// Reads as libuv does: with POLLHUP, a read that leaves room in its buffer was the last. What a connection brings so whose
// writer filled TCP before a stream carried it, and wrote by that and ended then.
static int ends_behind_all(int port) {
    static char bytes[4 << 20];
    size_t sent = 1, got = 0;
    ssize_t n;
    struct pollfd entry = {.fd = -1, .events = POLLIN};
    int listener = listens(port), fd = connects(port), peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    write_all(fd, bytes, 1);
    read_all(peer, bytes, 1);
    write_all(peer, bytes, 1);
    while ((n = send(peer, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) sent += n;
    CHECK(errno == EAGAIN);
    while (carried_ends() < 2) {
        struct pollfd both[2] = {{fd, 0, 0}, {peer, 0, 0}};
        CHECK(poll(both, 2, 1) == 0);
    }
    // One that took over before TCP was full is full itself by now.
    for (size_t left = 100000; left > 0 && (n = send(peer, bytes, left, MSG_DONTWAIT)) > 0; left -= n) sent += n;
    CHECK(n > 0 || errno == EAGAIN);
    CHECK(shutdown(peer, SHUT_WR) == 0 && shutdown(fd, SHUT_WR) == 0);
    entry.fd = fd;
    do {
        CHECK(poll(&entry, 1, 10000) == 1);
        n = read(fd, bytes, 65536);
        CHECK(n >= 0);
        got += n;
    } while (n > 0 && (n == 65536 || !(entry.revents & POLLHUP)));
    if (got != sent) printf("%zu of %zu bytes\n", got, sent);
    CHECK(got == sent);
    return close(fd) || close(peer);
}
