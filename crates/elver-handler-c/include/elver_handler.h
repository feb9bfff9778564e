/* A serverless function in C, as the runtime `native` of `elver faas` starts it: its program is forked for each request.
 *
 *     cc -o function function.c -lelver_handler_c -lgcc_s -lm
 *
 * What these calls give out is the handler's until it returns; a text of elver_error, until its next call. Threads are not forked: a program that has some gets no
 * requests but the first. */
#ifndef ELVER_HANDLER_H
#define ELVER_HANDLER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct elver_context;

/* Runs one request: an event of JSON, which does not end with a zero. 0 if it succeeded. It may not throw, nor leave by
 * longjmp. */
typedef int (*elver_handler)(const char *event, size_t length, struct elver_context *context);

/* Serves requests until the platform ends this process. Returns -1, with a line on standard error, if none can be had. */
int elver_serve(elver_handler handler);

/* The answer, JSON, which is copied. Without it the answer is null. */
void elver_answer(struct elver_context *context, const void *answer, size_t length);

/* Why the handler fails, which is copied. */
void elver_fail(struct elver_context *context, const char *what);

/* Why the last call failed. */
const char *elver_error(const struct elver_context *context);

/* How long until this process is killed, in milliseconds. */
uint64_t elver_time_left_ms(const struct elver_context *context);

/* Registered memory of the request's own, 32 KB and zeroed. Null if the platform gives no RDMA. */
void *elver_memory(struct elver_context *context, size_t *length);

/* Moves bytes between that memory and a peer's, over the connection to a destination (its GID), and waits until that is
 * done. 0, or -1. */
int elver_read(struct elver_context *context, const char *destination, uint64_t offset, uint32_t length,
               uint64_t address, uint32_t rkey);
int elver_write(struct elver_context *context, const char *destination, uint64_t offset, uint32_t length,
                uint64_t address, uint32_t rkey);

#ifdef __cplusplus
}
#endif

#endif
