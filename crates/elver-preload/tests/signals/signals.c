/* A program's signals are its own threads' alone: what they block waits for them, whatever threads the library has. */
#include <dirent.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../abuse/check.h"

static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF };
enum { COUNT = sizeof(signals) / sizeof(signals[0]) };

/* What a thread blocks, once it has begun: then it has a name of its own. */
static unsigned long long mask_of(const char *thread)
{
	char path[300], line[256];
	unsigned long long mask = 0;
	for (int begun = 0; !begun;) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread);
		FILE *name = fopen(path, "r");
		begun = !name || !fgets(line, sizeof(line), name) || atoi(thread) == getpid() || !strncmp(line, "elver", 5);
		if (name)
			fclose(name);
	}
	snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
	FILE *status = fopen(path, "r");
	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "SigBlk: %llx", &mask);
	if (status)
		fclose(status);
	return mask;
}

int main(void)
{
	struct ibv_device **list;
	struct ibv_context *ctx;
	MADE(list, ibv_get_device_list(NULL));
	MADE(ctx, ibv_open_device(list[0]));
	char own[16];
	snprintf(own, sizeof(own), "%d", (int)getpid());
	CODE(mask_of(own) == 0, 1);
	DIR *tasks;
	MADE(tasks, opendir("/proc/self/task"));
	int others = 0;
	for (struct dirent *task; (task = readdir(tasks));) {
		if (task->d_name[0] == '.' || !strcmp(task->d_name, own))
			continue;
		others++;
		for (int at = 0; at < COUNT; at++)
			check(strsignal(signals[at]), mask_of(task->d_name) >> (signals[at] - 1) & 1, 1);
	}
	closedir(tasks);
	CODE(others > 0, 1);
	sigset_t blocked;
	sigemptyset(&blocked);
	for (int at = 0; at < COUNT; at++)
		sigaddset(&blocked, signals[at]);
	CODE(sigprocmask(SIG_BLOCK, &blocked, NULL), 0);
	for (int at = 0; at < COUNT; at++) {
		struct timespec most = { 10, 0 };
		sigset_t one;
		sigemptyset(&one);
		sigaddset(&one, signals[at]);
		CODE(kill(getpid(), signals[at]), 0);
		check(strsignal(signals[at]), sigtimedwait(&one, NULL, &most), signals[at]);
	}
	CODE(ibv_close_device(ctx), 0);
	ibv_free_device_list(list);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
