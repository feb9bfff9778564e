// Part of program.c: calls by number (`syscall`), as libuv closes, and by none of the C library's functions.

#include <sys/syscall.h>

// A close that no library sees.
static void closes_by_number(int fd) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_close), "D"(fd) : "rcx", "r11", "memory");
    CHECK(result == 0);
#else
    CHECK(close(fd) == 0);
#endif
}

// Whether a file that gets the number of a closed connection is one.
static void is_a_file(int fd) {
    char byte = 1;
    int file = open("/dev/zero", O_RDWR);
    CHECK(file == fd && read(file, &byte, 1) == 1 && byte == 0);
    CHECK(write(file, &byte, 1) == 1 && syscall(SYS_close, file) == 0);
}

static int calls_by_number(int port) {
    char byte = 5, answer = 0;
    int fd = connects(port);
    await_carried(fd);
    CHECK(syscall(SYS_write, fd, &byte, 1L) == 1);
    CHECK(syscall(SYS_recvfrom, fd, &answer, 1L, MSG_WAITALL, NULL, NULL) == 1 && answer == 5);
    int copy = syscall(SYS_dup, fd);
    CHECK(copy > fd && syscall(SYS_close, fd) == 0);
    is_a_file(fd);
    struct iovec iov = {&byte, 1};
    CHECK(syscall(SYS_writev, copy, &iov, 1) == 1 && syscall(SYS_read, copy, &answer, 1L) == 1);
    CHECK(syscall(SYS_close, 1000) == -1 && errno == EBADF);
    CHECK(syscall(SYS_shutdown, copy, SHUT_WR) == 0 && read(copy, &answer, 1) == 0);
    CHECK(syscall(SYS_close, copy) == 0);
    is_a_file(fd);
    return 0;
}

// A connection's number becomes the library's own, of which it knows nothing.
static int closes_by_none(int port) {
    int first = connects(port);
    await_carried(first);
    int second = connects(port);
    closes_by_number(first);
    await_carried_ends(second, 4);
    return close(second);
}

// A child that `clone` makes, as of vsftpd, gives a connection's number to something else.
static int clones(int port) {
    int status, pair[2];
    char byte = 9;
    int fd = connects(port);
    await_carried(fd);
    pid_t child = syscall(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L);
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(fd) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == fd);
        CHECK(write(pair[1], &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 9);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    write_all(fd, &byte, 1);
    read_all(fd, &byte, 1);
    return close(fd);
}
