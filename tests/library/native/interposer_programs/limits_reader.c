/*
 * Reads a limits file again and again from several threads while somebody replaces it, and looks at the published view in between.
 *
 *   limits_reader FILE THREADS READS
 *
 * Each file says memory = generation MiB for its one device. Prints how many reads there were and how many versions one thread saw; ends with 1 where a
 * read was refused or a version was mixed with another.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "interposer/state/internal.h"

static const char *path;
static long reads;
static _Atomic long done, versions;
static _Atomic int failed;

static bool is_whole(const struct limits_view *view)
{
    return view->device_count == 1 && view->devices[0].memory_bytes == view->generation << 20;
}

static void *read_often(void *unused)
{
    uint64_t last = 0;
    long seen = 0;
    for (long i = 0; i < reads && !atomic_load(&failed); i++) {
        struct limits_view view;
        struct limits_outcome outcome = limits_read_file(path, &view);
        if (outcome.reason[0] != '\0' || !is_whole(&view) || view.generation < last || !is_whole(vcuda_limits())) {
            fprintf(stderr, "read %ld: %s, generation %llu after %llu\n", i, outcome.reason, (unsigned long long)view.generation,
                    (unsigned long long)last);
            atomic_store(&failed, 1);
        }
        seen += view.generation != last;
        last = view.generation;
        vcuda_refresh();
        atomic_fetch_add(&done, 1);
    }
    atomic_store(&versions, seen);
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    int wanted = count == 4 ? atoi(arguments[2]) : 0;
    if (wanted < 1 || wanted > 64)
        return 2;
    path = arguments[1];
    reads = atol(arguments[3]);
    for (int i = 0; i < wanted; i++)
        pthread_create(&threads[i], NULL, read_often, NULL);
    for (int i = 0; i < wanted; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld\n", atomic_load(&done), atomic_load(&versions));
    return atomic_load(&failed);
}
