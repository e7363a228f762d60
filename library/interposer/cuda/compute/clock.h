/*
 * The time, quickly: the processor's counter between two looks at CLOCK_MONOTONIC.
 *
 * In: nothing. Out: nanoseconds that are right to some microseconds, for who looks at them for each launch. Where the counter cannot be trusted to
 * run evenly on all cores, and in the first milliseconds, CLOCK_MONOTONIC itself. Each thread has its own, so there is nothing to synchronise.
 */
#ifndef VCUDA_COMPUTE_CLOCK_H
#define VCUDA_COMPUTE_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "interposer/state/state.h"

struct quick_clock {
    uint64_t ticks, ns;                 /* at the last look */
};

/* Nanoseconds for each 2^32 ticks; 0: not known (yet). */
extern _Atomic uint64_t clock_rate;

static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

/* Looks at CLOCK_MONOTONIC. */
uint64_t clock_look(struct quick_clock *clock);

static inline uint64_t clock_now(struct quick_clock *clock)
{
    uint64_t rate = atomic_load_explicit(&clock_rate, memory_order_relaxed), ticks = clock_ticks() - clock->ticks;
    if (rate == 0 || ticks >> 28 != 0)
        return clock_look(clock);
    return clock->ns + (ticks * rate >> 32);
}

#endif
