/*
 * The node's clock: what processes tell each other of time, though a time namespace shifts CLOCK_MONOTONIC for some of them. A container that was restored
 * from a checkpoint is in one, and what is started in it later need not be.
 *
 * In: the kernel's word on our namespace. Out: how far our clock is ahead. Without such a word, of an older kernel or without /proc, it is not.
 * Invariant: what could not be read is what was read last, and is read again. A process may be restored into a namespace at any moment.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static _Atomic int64_t ahead_ns;

/* A line each for clocks; of ours: "monotonic SECONDS NANOSECONDS". */
static void read_offsets(const char *text)
{
    long long seconds, nanoseconds;
    const char *line = strstr(text, "monotonic");
    if (line != NULL && sscanf(line, "monotonic %lld %lld", &seconds, &nanoseconds) == 2)
        atomic_store(&ahead_ns, (int64_t)seconds * INT64_C(1000000000) + (int64_t)nanoseconds);
}

void node_clock_look(void)
{
    char text[256];
    int file = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return;
    text[length] = '\0';
    read_offsets(text);
}

int64_t vcuda_ahead(void)
{
    return atomic_load_explicit(&ahead_ns, memory_order_relaxed);
}

uint64_t vcuda_node_ns(void)
{
    return vcuda_now_ns() - (uint64_t)vcuda_ahead();
}
