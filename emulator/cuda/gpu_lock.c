/* See gpu_lock.h. */
#include "gpu_lock.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

#define WAITED UINT32_C(0x80000000)
enum { SPINS = 64, PATIENCE_NS = 2000000 };

static bool try(struct cuda_gpu *gpu, uint32_t word)
{
    uint32_t free_word = 0;
    return atomic_load_explicit(&gpu->owner, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&gpu->owner, &free_word, word, memory_order_acquire, memory_order_relaxed);
}

/* A holder that another thread of this process or a live one is will let go by itself. */
static void take_from_the_dead(struct cuda_gpu *gpu, uint32_t seen, uint32_t word)
{
    unsigned slot = (seen & ~WAITED) - 1;
    if (slot != slot_own && slot < CUDA_SLOTS && !occupant_lives(driver.section, driver.pids, slot, NULL))
        atomic_compare_exchange_strong(&gpu->owner, &seen, 0);
    (void)word;
}

static void take_slowly(struct cuda_gpu *gpu, uint32_t word)
{
    for (;;) {
        uint32_t seen = atomic_load(&gpu->owner);
        if (seen == 0) {
            if (try(gpu, word | WAITED))
                return;
            continue;
        }
        if ((seen & WAITED) == 0 && !atomic_compare_exchange_strong(&gpu->owner, &seen, seen | WAITED))
            continue;
        const struct timespec patience = {.tv_nsec = PATIENCE_NS};
        if (syscall(SYS_futex, &gpu->owner, FUTEX_WAIT, seen | WAITED, &patience, NULL, 0) != 0)
            take_from_the_dead(gpu, seen | WAITED, word);
    }
}

void gpu_lock(struct cuda_gpu *gpu)
{
    uint32_t word = slot_own + 1;
    for (int i = 0; i < SPINS; i++) {
        if (try(gpu, word))
            return;
    }
    take_slowly(gpu, word);
}

void gpu_unlock(struct cuda_gpu *gpu)
{
    if ((atomic_exchange_explicit(&gpu->owner, 0, memory_order_release) & WAITED) != 0)
        syscall(SYS_futex, &gpu->owner, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void gpu_lock_inherit(struct cuda_gpu *gpu, unsigned slot)
{
    uint32_t word = slot + 1, waited = word | WAITED;
    if (!atomic_compare_exchange_strong(&gpu->owner, &word, 0))
        atomic_compare_exchange_strong(&gpu->owner, &waited, 0);
}

void gpu_reap_slot(struct cuda_gpu *gpu, unsigned slot)
{
    timeline_forget(&gpu->timeline, slot);
    atomic_store(&gpu->use[slot].bytes, 0);
    atomic_store(&gpu->use[slot].contexts, 0);
}

void gpu_reap(struct cuda_gpu *gpu, uint64_t now)
{
    unsigned high = atomic_load(&driver.section->slot_high);
    atomic_store(&gpu->checked_ns, now);
    for (unsigned slot = 0; slot < high && slot < CUDA_SLOTS; slot++) {
        bool has = atomic_load(&gpu->use[slot].bytes) != 0 || atomic_load(&gpu->use[slot].contexts) != 0;
        if (slot == slot_own || (!has && !timeline_is_active(&gpu->timeline, slot)))
            continue;
        if (!occupant_lives(driver.section, driver.pids, slot, NULL))
            gpu_reap_slot(gpu, slot);
    }
}
