/*
 * Room for a context; see memory.h. How much one takes is learned: the least that any took, right after it was made, is kept in the region.
 *
 * Not here: what it takes in the end (overhead.h), which counts from its creation on. Until then the reservation stands for it, so that of two
 * processes that begin at once in a container that is nearly full the second one knows of the first.
 */
#include <time.h>

#include "account.h"
#include "interposer/cuda/hooks.h"
#include "memory.h"
#include "overhead.h"

#define PATIENCE_NS UINT64_C(1000000000)
#define PAUSE_NS 10000000

static uint64_t overhead_of(unsigned index)
{
    return atomic_load(&vcuda_slot()->use[index].overhead);
}

/*
 * What others' contexts take may be a guess until NVML has said it (overhead.h), and what has ended may not be given back yet: within a second both
 * are known, and only then is a context refused.
 */
static bool reserve(struct memory_context_room *room)
{
    uint64_t deadline_ns = vcuda_now_ns() + PATIENCE_NS;

    for (;;) {
        room->bytes = overhead_expected(room->index);
        if (account_reserve(room->index, room->bytes))
            return true;
        if (vcuda_now_ns() > deadline_ns)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

/* What it takes could not be counted. */
static bool is_lost(unsigned index)
{
    if (!overhead_is_lost(index))
        return false;
    overhead_grew();
    overhead_settle();
    return overhead_is_lost(index);
}

static bool primary_is_active(int device)
{
    unsigned flags;
    int active = 0;

    return DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

bool memory_context_begin(struct memory_context_room *room, int device, bool primary)
{
    *room = (struct memory_context_room){0};
    if (hook_nested() || !account_needed() || account_verdict(device, &room->index) != VERDICT_COUNT)
        return true;
    if (vcuda_region() == NULL || (primary && primary_is_active(device)))
        return true;
    if (overhead_of(room->index) != 0 && !overhead_is_measured(room->index))
        return true;    /* a guess, which may be of a context that is gone: without NVML nobody knows */
    if (!is_lost(room->index) && reserve(room))
        return true;
    account_refused(room->index);
    return false;
}

static void learn(unsigned index, uint64_t bytes)
{
    _Atomic uint64_t *learned = &vcuda_region()->devices[index].context_bytes;
    uint64_t known = atomic_load_explicit(learned, memory_order_relaxed);

    while (bytes != 0 && (known == 0 || bytes < known) && !atomic_compare_exchange_weak(learned, &known, bytes))
        ;
}

void memory_context_end(const struct memory_context_room *room, bool made)
{
    if (room->bytes == 0)
        return;
    if (made)
        overhead_settle();
    account_unreserve(room->index, room->bytes);
    if (made)
        learn(room->index, overhead_of(room->index));
}
