/* A program that leaves libc's look-ups of names half-way: from the filters that scandir calls by an exception and by
 * longjmp, and from fopen by being cancelled. Its own objects are destroyed as they are without the library. (From the
 * order that scandir calls glibc 2.36 itself survives no exception.) */
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static int alive;
static jmp_buf before;

struct Guard {
	Guard() { alive++; }
	~Guard() { alive--; }
};

static int filter_throws(const struct dirent *entry)
{
	Guard guard;
	if (entry->d_name[0] == '.')
		throw entry->d_name[0];
	return 1;
}

static int filter_throws_64(const struct dirent64 *)
{
	Guard guard;
	throw 64;
}

static int filter_jumps(const struct dirent *)
{
	longjmp(before, 7);
}

static void leave(const char *name)
{
	struct dirent **entries;
	struct dirent64 **entries_64;
	Guard guard;
	try {
		scandir(name, &entries, filter_throws, alphasort);
	} catch (char thrown) {
		printf("%c ", thrown);
	}
	try {
		scandir64(name, &entries_64, filter_throws_64, alphasort64);
	} catch (int thrown) {
		printf("%d ", thrown);
	}
	int jumped = setjmp(before);
	if (jumped == 0)
		scandir(name, &entries, filter_jumps, nullptr);
	/* It is what it was. */
	int count = scandir(name, &entries, nullptr, alphasort);
	printf("%d %s\n", jumped, count > 2 ? "as ever" : "not as ever");
}

/* Bytes that are lost each time that a filter throws. */
static long lost(const char *name)
{
	enum { FIRST = 100, TIMES = 10000 };
	size_t before = 0;
	for (int time = 0; time <= FIRST + TIMES; time++) {
		struct dirent **entries;
		try {
			scandir(name, &entries, filter_throws, nullptr);
		} catch (char) {
		}
		/* Some at first, for what is kept; and what threads have meanwhile is little beside all. */
		if (time == FIRST)
			before = mallinfo2().uordblks;
	}
	return ((long)mallinfo2().uordblks - (long)before) / TIMES;
}

static void *opens(void *name)
{
	Guard guard;
	/* Nobody writes to it. */
	fopen(static_cast<char *>(name), "r");
	return nullptr;
}

int main(int, char **argv)
{
	leave("/sys/class/infiniband/elver0");
	leave("/");
	printf("%ld %ld lost, %d alive\n", lost("/sys/class/infiniband/elver0"), lost("/"), alive);
	if (mkfifo(argv[1], 0600))
		return 1;
	pthread_t thread;
	void *result;
	if (pthread_create(&thread, nullptr, opens, argv[1]) || pthread_cancel(thread) || pthread_join(thread, &result))
		return 1;
	unlink(argv[1]);
	printf("%s, %d alive\n", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled", alive);
	return 0;
}
