// Calls libibverbs, and makes processes that call what libibverbs calls: 0 if they end as they mean to. With an argument,
// threads call through one place at once instead.
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
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
    if (count > 1) {
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
