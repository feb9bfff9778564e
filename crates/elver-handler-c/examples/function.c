/* A function in C: it READs 8 bytes that its event names, "GID ADDRESS RKEY" as one text, and answers with them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "elver_handler.h"

static int handler(const char *event, size_t length, struct elver_context *context)
{
    char text[256], to[64], answer[128];
    uint64_t address;
    uint32_t rkey;
    char *memory;

    if (length >= sizeof(text)) {
        elver_fail(context, "the event is too long");
        return -1;
    }
    memcpy(text, event, length);
    text[length] = 0;
    if (sscanf(text, "\"%63s %" SCNu64 " %" SCNu32 "\"", to, &address, &rkey) != 3) {
        elver_fail(context, "the event is no \"GID ADDRESS RKEY\"");
        return -1;
    }
    memory = elver_memory(context, NULL);
    if (!memory || elver_read(context, to, 16, 8, address, rkey))
        return -1;
    snprintf(answer, sizeof(answer), "{\"read\":\"%.8s\"}", memory + 16);
    elver_answer(context, answer, strlen(answer));
    return 0;
}

int main(void)
{
    return elver_serve(handler) ? 1 : 0;
}
