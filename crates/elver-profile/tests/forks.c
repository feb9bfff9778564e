// Calls libibverbs, and makes processes that call what libibverbs calls: 0 if they end as they mean to. With an argument it
// does something else: "threads" call through one place at once, "signals" of real time come while it calls, another process
// "stops" a thread of it that calls what libibverbs calls, and then another thread calls libibverbs, or it "exits" while
// threads call.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *call(void *);

static atomic_int done;

// What is called here returns to one address, whoever calls.
__attribute__((noinline)) static void *through(call *what, void *argument) {
    void *volatile result = what(argument);
    return result;
}

static void *nothing(void *argument) { return argument; }

static void *others(void *unused) {
    while (!atomic_load(&done))
        through(nothing, unused);
    return 0;
}

static atomic_int signals;

static void counts(int unused) {
    (void)unused;
    atomic_fetch_add(&signals, 1);
}

static void *waits(void *unused) {
    while (1)
        pause();
    return unused;
}

// A thread sends signals to this one, which has one by itself, and ends another by the C library's.
static void *sends(void *to) {
    while (!atomic_load(&done))
        pthread_kill(*(pthread_t *)to, SIGRTMIN);
    return 0;
}

static int has_signals(const char *(*name)(int)) {
    struct sigaction action = {.sa_handler = counts, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, 0);
    kill(getpid(), SIGRTMIN);
    if (atomic_load(&signals) != 1)
        return 3;
    pthread_t own = pthread_self(), thread;
    pthread_create(&thread, 0, waits, 0);
    pthread_cancel(thread);
    void *ended = 0;
    pthread_join(thread, &ended);
    if (ended != PTHREAD_CANCELED)
        return 4;
    pthread_create(&thread, 0, sends, &own);
    for (int i = 0; i < 300; i++)
        if (!name(1) || !name(2))
            return 5;
    atomic_store(&done, 1);
    pthread_join(thread, 0);
    return 0;
}

// Stops the first thread of its maker for as long as that lives.
static void stops(pid_t which) {
    while (getppid() == which) {
        syscall(SYS_tgkill, which, which, SIGSTOP);
        sched_yield();
    }
    _exit(0);
}

static int is_stopped(call *list) {
    // That of the other's end would have the step done after all.
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, 0);
    pid_t own = getpid(), other = fork();
    if (!other)
        stops(own);
    for (int i = 0; i < 300; i++)
        if (closedir(opendir("/")))
            return 8;
    kill(other, SIGKILL);
    waitpid(other, 0, 0);
    pthread_t thread;
    pthread_create(&thread, 0, list, 0);
    return pthread_join(thread, 0);
}

static atomic_int calls;

static void *names(void *name) {
    while (1) {
        ((const char *(*)(int))name)(1);
        atomic_fetch_add(&calls, 1);
    }
    return 0;
}

static void exits(void *name) {
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, 0, names, name);
    while (atomic_load(&calls) < 40)
        sched_yield();
    _exit(6);
}

static int looks(void) {
    return opendir("/") && fopen("/dev/null", "r") && dlopen("libm.so.6", RTLD_NOW) ? 7 : 1;
}

static int ended(const char *what, pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
        return 0;
    fprintf(stderr, "%s: status %#x\n", what, status);
    return 1;
}

int main(int count, char **arguments) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    call *list = library ? (call *)dlsym(library, "ibv_get_device_list") : 0;
    if (!list)
        return 2;
    const char *does = count > 1 ? arguments[1] : "";
    void *name = dlsym(library, "ibv_node_type_str");
    if (!strcmp(does, "signals"))
        return has_signals((const char *(*)(int))name);
    if (!strcmp(does, "stops"))
        return is_stopped(list);
    if (!strcmp(does, "exits"))
        exits(name);
    if (!strcmp(does, "threads")) {
        pthread_t thread;
        pthread_create(&thread, 0, others, 0);
        for (int i = 0; i < 20; i++)
            through(list, 0);
        atomic_store(&done, 1);
        return pthread_join(thread, 0);
    }
    list(0);
    pid_t child = fork();
    if (!child) {
        // And its own child.
        pid_t grandchild = fork();
        _exit(grandchild ? (ended("a grandchild", grandchild) ? 1 : looks()) : looks());
    }
    int failed = ended("fork", child);
    child = vfork();
    if (!child)
        _exit(opendir("/") ? 7 : 1);
    failed += ended("vfork", child);
    child = vfork();
    if (!child) {
        execl("/nowhere", "nothing", (char *)0);
        execl("/bin/sh", "sh", "-c", "ls / > /dev/null && exit 7", (char *)0);
        _exit(1);
    }
    failed += ended("exec", child);
    list(0);
    return failed;
}
