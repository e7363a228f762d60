/*
 * For programs of tests that do a thing in many threads, and of which many count together.
 * In: what to do, how often; a file. Out: when all have done it; the file's first word, shared.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "programs/program.h"

enum { MOST_THREADS = 256 };

/* Its argument is the thread's number, from 1. */
static inline void in_threads(int count, void *(*body)(void *))
{
    pthread_t threads[MOST_THREADS];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static inline _Atomic uint64_t *shared_count(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "%s: cannot map %s\n", program_invocation_short_name, path);
        exit(1);
    }
    return mapped;
}
