/* See gpu.h. */
#include "gpu.h"

#include <errno.h>
#include <time.h>

#include "event.h"
#include "gpu_lock.h"
#include "lock.h"
#include "session.h"

/* A neighbour may die or get work while this process sleeps: it looks again at least this often, and this often for dead ones. */
#define LOOK_AGAIN_NS UINT64_C(20000000)
#define REAP_NS UINT64_C(5000000)

static unsigned cores_each(unsigned major, unsigned minor)
{
    if (major == 6)
        return minor == 0 ? 64 : 128;
    return major == 7 || (major == 8 && minor == 0) ? 64 : 128;
}

static unsigned threads_each(unsigned major, unsigned minor)
{
    if (major == 7 && minor == 5)
        return 1024;
    return (major == 8 && minor != 0) || major == 12 ? 1536 : 2048;
}

void gpu_prepare(struct gpu *gpu, int ordinal, unsigned position)
{
    gpu->ordinal = ordinal;
    gpu->position = position;
    gpu->state = state_gpu(&driver.machine, position);
    gpu->facts = &gpu->state->facts;
    gpu->shared = &driver.section->gpus[position];
    gpu->multiprocessors = gpu->facts->cores / cores_each(gpu->facts->capability_major, gpu->facts->capability_minor);
    if (gpu->multiprocessors == 0)
        gpu->multiprocessors = 1;
    gpu->threads_each = threads_each(gpu->facts->capability_major, gpu->facts->capability_minor);
}

/* The GPU's lock is held from here to the end of the caller's change. */
static void advance(struct gpu *gpu)
{
    struct timeline *timeline = &gpu->shared->timeline;
    gpu_lock(gpu->shared);
    uint64_t now = clock_ns();
    timeline_advance(timeline, now);
    gpu->active = timeline_active(timeline);
    if (gpu->active > 1 && now - atomic_load(&gpu->shared->checked_ns) > REAP_NS) {
        gpu_reap(gpu->shared, now);
        gpu->active = timeline_active(timeline);
    }
    const struct timeline_now *at = timeline_read(timeline);
    gpu->t = at->t;
    gpu->v = at->v;
}

static void settle(struct gpu *gpu)
{
    gpu_unlock(gpu->shared);
    if (gpu->timed != NULL)
        event_settle(gpu);
}

void gpu_look(struct gpu *gpu)
{
    advance(gpu);
    settle(gpu);
}

bool gpu_passed(struct gpu *gpu, uint64_t v)
{
    if (v <= gpu->v)
        return true;
    gpu_look(gpu);
    return v <= gpu->v;
}

uint64_t gpu_run(struct gpu *gpu, uint64_t earliest, uint64_t cost)
{
    uint64_t now = clock_ns(), most = now > gpu->t ? gpu->v + (now - gpu->t) : gpu->v, end = earliest + cost;
    if (earliest >= most && earliest <= gpu->end) { /* the GPU is certainly still at it */
        if (end <= gpu->end)
            return end;
        if (timeline_extend(&gpu->shared->timeline.slots[slot_own], gpu->end, end))
            return gpu->end = end;
    }
    advance(gpu);
    end = (earliest > gpu->v ? earliest : gpu->v) + cost;
    if (end > gpu->end) {
        timeline_start(&gpu->shared->timeline, slot_own, end);
        gpu->end = end;
    }
    settle(gpu);
    return end;
}

uint64_t gpu_when(struct gpu *gpu, uint64_t v)
{
    gpu_lock(gpu->shared);
    uint64_t t = timeline_reached(&gpu->shared->timeline, v);
    gpu_unlock(gpu->shared);
    return t;
}

uint64_t gpu_expect(struct gpu *gpu, uint64_t v)
{
    gpu_lock(gpu->shared);
    uint64_t t = timeline_predict(&gpu->shared->timeline, v);
    gpu_unlock(gpu->shared);
    uint64_t again = clock_ns() + LOOK_AGAIN_NS;
    return t < again || (t != UINT64_MAX && gpu->active <= 1) ? t : again;
}

static void sleep_until(uint64_t t)
{
    const struct timespec until = {.tv_sec = (time_t)(t / 1000000000), .tv_nsec = (long)(t % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

void gpu_wait_a_while(struct gpu *gpu, uint64_t v)
{
    uint64_t until = gpu_expect(gpu, v);
    driver_unlock();
    sleep_until(until);
    driver_lock();
}

void gpu_wait(struct gpu *gpu, uint64_t v)
{
    while (!gpu_passed(gpu, v))
        gpu_wait_a_while(gpu, v);
}

bool gpu_is_lost(const struct gpu *gpu)
{
    const struct shared_gpu *state = gpu->state;
    uint64_t version = atomic_load_explicit(&state->version, memory_order_acquire);
    return __atomic_load_n(&state->status[version & 1].presence, __ATOMIC_RELAXED) != PRESENT;
}
