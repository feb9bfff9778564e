/* Calls, and the errno that each must have. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

static void check(const char *what, int found, int expected)
{
	checks++;
	if (found == expected)
		return;
	failures++;
	printf("%s: %d (%s), not %d (%s)\n", what, found, strerror(abs(found)), expected, strerror(abs(expected)));
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
