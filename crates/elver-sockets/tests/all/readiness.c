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
