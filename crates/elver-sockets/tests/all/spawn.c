// Part of program.c: connections that are given to programs which this one starts without `fork`.

#include <spawn.h>

extern char **environ;

// What the standard input brings, to the standard output, behind a byte.
static int relays(void) {
    char buf[5000] = "r";
    ssize_t n;
    write_all(1, buf, 1);
    while ((n = read(0, buf, sizeof buf)) > 0) write_all(1, buf, n);
    return n < 0;
}

static pid_t starts(int way, int fd, const char *self, FILE **pipe) {
    char command[512], *words[] = {(char *)self, "relay", "0", NULL};
    pid_t child = 0;
    posix_spawn_file_actions_t actions;
    snprintf(command, sizeof command, "exec %s relay 0 <&%d >&%d", self, fd, fd);
    switch (way) {
    case 0:
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        for (int to = 0; to < 2; to++) CHECK(posix_spawn_file_actions_adddup2(&actions, fd, to) == 0);
        CHECK(posix_spawn(&child, self, &actions, NULL, words, environ) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
        break;
    case 1:
        if ((child = vfork()) == 0) {
            if (dup2(fd, 0) == 0 && dup2(fd, 1) == 1) execv(self, words);
            _exit(1);
        }
        break;
    case 2:
        CHECK((*pipe = popen(command, "w")) != NULL);
        break;
    default:
        CHECK(system(command) == 0);
    }
    CHECK(child >= 0);
    return child;
}

// Accepts, writes, and has another program do the rest: in each of the ways, while it goes on with its own.
static int has_others_serve(int port, const char *self) {
    int listener = listens(port), status;
    for (int way = 0; way < 4; way++) {
        FILE *pipe = NULL;
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        write_all(fd, "p", 1);
        pid_t child = starts(way, fd, self, &pipe);
        while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
            struct pollfd entry = {fd, 0, 0};
            CHECK(poll(&entry, 1, 1) >= 0);
        }
        CHECK(child == 0 || status == 0);
        if (pipe) CHECK(pclose(pipe) == 0);
        CHECK(close(fd) == 0);
    }
    return 0;
}

static int is_served_by_others(int port) {
    static char bytes[300000], back[300000];
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = at * 7 >> 3;
    for (int way = 0; way < 4; way++) {
        char first[2], byte;
        int fd = connects(port), came = 0;
        // It can be found by the other end when it reads: not before the other program runs.
        while (came < 2) CHECK(poll(NULL, 0, 1) == 0 && ioctl(fd, FIONREAD, &came) == 0);
        read_all(fd, first, 2);
        CHECK(!memcmp(first, "pr", 2));
        write_all(fd, bytes, sizeof bytes);
        CHECK(shutdown(fd, SHUT_WR) == 0);
        read_all(fd, back, sizeof back);
        CHECK(!memcmp(bytes, back, sizeof back) && read(fd, &byte, 1) == 0 && close(fd) == 0);
    }
    return 0;
}
