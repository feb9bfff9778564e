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
