/*
 * See usage.h. A process writes its own word alone, under the GPU's lock, so the words that are left are whole, however it ends, and its own
 * is taken back by the process that finds it dead.
 */
#include "usage.h"

#include "../shared/exported.h"
#include "context.h"
#include "gpu_lock.h"
#include "session.h"

static uint64_t physical(const struct gpu *gpu)
{
    return (gpu->facts->memory_mib - gpu->facts->reserved_mib) << 20;
}

/* What vcuda-emulator and the profile say is in use, and what processes have of others that are gone. */
static uint64_t scripted(const struct gpu *gpu)
{
    struct gpu_status status;
    state_read(gpu->state, &status);
    uint64_t mib = status.used_mib;
    for (uint64_t i = 0; i < status.process_count; i++)
        mib += status.processes[i].memory_mib;
    uint64_t left_by_the_dead = atomic_load(&gpu->shared->exported) == 0 ? 0 : exported_without_maker(state_path(), gpu->position);
    return (mib << 20) + left_by_the_dead;
}

static uint64_t in_use(const struct gpu *gpu)
{
    unsigned high = atomic_load(&driver.section->slot_high);
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < high && slot < CUDA_SLOTS; slot++)
        sum += atomic_load_explicit(&gpu->shared->use[slot].bytes, memory_order_relaxed);
    return sum;
}

static uint64_t left(const struct gpu *gpu, uint64_t elsewhere)
{
    uint64_t all = physical(gpu), used = in_use(gpu) + elsewhere;
    return used < all ? all - used : 0;
}

static void reap(const struct gpu *gpu)
{
    uint64_t now = clock_ns();
    timeline_advance(&gpu->shared->timeline, now);
    gpu_reap(gpu->shared, now);
}

void usage_note_export(int device)
{
    atomic_store(&driver.gpus[device].shared->exported, 1);
}

bool usage_take(int device, uint64_t bytes)
{
    struct gpu *gpu = &driver.gpus[device];
    if (!slot_claim())
        return false;
    uint64_t elsewhere = scripted(gpu);
    gpu_lock(gpu->shared);
    bool fits = bytes <= left(gpu, elsewhere);
    if (!fits) {
        reap(gpu);
        fits = bytes <= left(gpu, elsewhere);
    }
    if (fits)
        atomic_fetch_add(&gpu->shared->use[slot_own].bytes, bytes);
    gpu_unlock(gpu->shared);
    return fits;
}

void usage_give(int device, uint64_t bytes)
{
    struct gpu *gpu = &driver.gpus[device];
    atomic_fetch_sub(&gpu->shared->use[slot_own].bytes, bytes);
}

void usage_totals(int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct gpu *gpu = &driver.gpus[device];
    *total_bytes = physical(gpu);
    *free_bytes = 0;
    if (!slot_claim())
        return;
    uint64_t elsewhere = scripted(gpu);
    gpu_lock(gpu->shared);
    reap(gpu);
    *free_bytes = left(gpu, elsewhere);
    gpu_unlock(gpu->shared);
}
