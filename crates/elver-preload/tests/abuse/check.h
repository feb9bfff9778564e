/* Calls, and the errno that each must have. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static _Atomic int failures, checks;

static void check(const char *what, int found, int expected)
{
	checks++;
	if (found == expected)
		return;
	failures++;
	printf("%s: %d (%s), not %d (%s)\n", what, found, strerror(abs(found)), expected, strerror(abs(expected)));
}

/* Whether a thread of this process sleeps. */
static inline int sleeps(pid_t thread)
{
	char name[64], line[256] = "";
	snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
	FILE *stat = fopen(name, "r");
	int sleeps = stat && fgets(line, sizeof line, stat) && strstr(line, ") S");
	if (stat)
		fclose(stat);
	return sleeps;
}

/* A call that returns an errno. */
#define CODE(call, expected) check(#call, (call), expected)
/* A call that returns an errno and sets it too. */
#define BOTH(call, expected) \
	do { \
		errno = 0; \
		check(#call, (call), expected); \
		check("errno of " #call, errno, expected); \
	} while (0)
/* A call that returns an object, or null and errno. */
#define NONE(call, expected) \
	do { \
		errno = 0; \
		check(#call, (call) ? 0 : errno, expected); \
	} while (0)
#define MADE(to, call) \
	do { \
		to = (call); \
		if (!to) { \
			perror(#call); \
			exit(2); \
		} \
	} while (0)
