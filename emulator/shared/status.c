/*
 * Reading and publishing a GPU's status.
 *
 * Invariant: status[version & 1] is whole at every instant. A reader that was overtaken sees another version and reads again; it
 * never waits. Words are moved with relaxed atomics, so a torn read is thrown away rather than undefined.
 */
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "state.h"

enum { PATIENCE = 64 };

static void load_words(void *to, const void *from, size_t size)
{
    uint64_t *out = to;
    const uint64_t *in = from;
    for (size_t i = 0; i < size / 8; i++)
        out[i] = __atomic_load_n(&in[i], __ATOMIC_RELAXED);
}

static void store_words(void *to, const void *from, size_t size)
{
    uint64_t *out = to;
    const uint64_t *in = from;
    for (size_t i = 0; i < size / 8; i++)
        __atomic_store_n(&out[i], in[i], __ATOMIC_RELAXED);
}

static size_t processes_size(uint64_t count)
{
    return (count < MAX_PROCESSES ? count : MAX_PROCESSES) * sizeof(struct gpu_process);
}

void state_read(const struct shared_gpu *gpu, struct gpu_status *out)
{
    for (unsigned tries = 1;; tries++) {
        uint64_t version = atomic_load_explicit(&gpu->version, memory_order_acquire);
        const struct gpu_status *from = &gpu->status[version & 1];
        load_words(out, from, offsetof(struct gpu_status, processes));
        load_words(out->processes, from->processes, processes_size(out->process_count));
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&gpu->version, memory_order_relaxed) == version)
            return;
        if (tries % PATIENCE == 0)
            sched_yield();
    }
}

void state_write(struct shared_gpu *gpu, const struct gpu_status *status)
{
    uint64_t version = atomic_load_explicit(&gpu->version, memory_order_acquire);
    struct gpu_status *to = &gpu->status[(version + 1) & 1];
    atomic_thread_fence(memory_order_release);
    store_words(to, status, offsetof(struct gpu_status, processes));
    store_words(to->processes, status->processes, processes_size(status->process_count));
    atomic_store_explicit(&gpu->version, version + 1, memory_order_release);
}

uint64_t clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}
