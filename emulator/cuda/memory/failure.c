/* See failure.h. */
#include "failure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FAILURES = 8, NAME_SIZE = 48 };

struct failure {
    char function[NAME_SIZE];
    long call;
    atomic_long seen;
};

static struct failure failures[MOST_FAILURES];
static unsigned failure_count;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static void read_failures(void)
{
    const char *at = getenv("VCUDA_EMULATOR_FAIL");
    while (at != NULL && *at != '\0' && failure_count < MOST_FAILURES) {
        size_t length = strcspn(at, ":,");
        struct failure *failure = &failures[failure_count];
        if (at[length] == ':' && length < NAME_SIZE) {
            memcpy(failure->function, at, length);
            failure->call = strtol(at + length + 1, NULL, 10);
            failure_count += failure->call > 0;
        }
        at += strcspn(at, ",");
        at += *at == ',';
    }
}

bool failure_due(const char *function)
{
    pthread_once(&read_once, read_failures);
    for (unsigned i = 0; i < failure_count; i++) {
        if (strcmp(failures[i].function, function) == 0 && atomic_fetch_add(&failures[i].seen, 1) + 1 == failures[i].call)
            return true;
    }
    return false;
}
