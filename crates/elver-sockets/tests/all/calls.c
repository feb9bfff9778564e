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
    return close(fds[2]);
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

static int closed_by_handler, replaced_by_handler;
static void *nowhere;

static void closes(int signal) {
    int none = open("/dev/null", O_RDONLY);
    if (signal != SIGSEGV || none < 0 || close(closed_by_handler) || dup2(none, replaced_by_handler) < 0 || close(none)) abort();
    if (mprotect(nowhere, 4096, PROT_READ | PROT_WRITE)) abort();
}

// A handler may close descriptors, and put others in their place.
static int closes_in_a_handler(int port) {
    char byte;
    int fds[3];
    for (int i = 0; i < 3; i++) await_carried_ends(fds[i] = connects(port), 2 * i + 2);
    closed_by_handler = fds[0];
    replaced_by_handler = fds[1];
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
