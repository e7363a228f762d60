/*
 * A lock for what is mostly some dozens of instructions: an atomic step to take, a plain store to give back. A mutex needs another atomic step then, to
 * learn whether somebody sleeps on it; here who waits looks again by himself.
 * Between threads of one process, and not for what is shared with another: who is killed with it held would keep it. In a forked child its holder may not
 * exist: it is set to 0 there. Waiting is no cancellation point, and sleeps, so that a holder of a lower priority gets on.
 */
#ifndef VCUDA_MEMORY_SHORT_LOCK_H
#define VCUDA_MEMORY_SHORT_LOCK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct short_lock {
    _Atomic uint32_t held;
};

enum { SHORT_LOCK_LOOKS = 100, SHORT_LOCK_SLEEP_NS = 20000 };

static inline void short_lock_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static __attribute__((noinline, cold, unused)) void short_lock_wait(struct short_lock *lock)
{
    const struct timespec pause = {.tv_nsec = SHORT_LOCK_SLEEP_NS};
    int before = errno;

    do {
        for (int looks = 0; atomic_load_explicit(&lock->held, memory_order_relaxed) != 0; looks++)
            if (looks < SHORT_LOCK_LOOKS)
                short_lock_pause();
            else
                syscall(SYS_nanosleep, &pause, NULL);
    } while (atomic_exchange_explicit(&lock->held, 1, memory_order_acquire) != 0);
    errno = before;
}

static inline void short_lock_take(struct short_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->held, 1, memory_order_acquire) != 0, 0))
        short_lock_wait(lock);
}

static inline void short_lock_give(struct short_lock *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
