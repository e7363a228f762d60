/*
 * Sleeping and cancellation: neither may leave a queue, a lock or a reservation half done.
 * Sleeping here is no cancellation point. A thread that holds something over a call that is one (the driver's may be) turns cancellation off.
 */
#ifndef VCUDA_COMPUTE_SLEEP_UNTIL_H
#define VCUDA_COMPUTE_SLEEP_UNTIL_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interposer/state/state.h"

#define SLEEP_SHORT_NS UINT64_C(20000)
/* The longest wait for another thread that is inside the driver: after that the driver itself blocks, and it is asked to end what it blocks in. */
#define SLEEP_MOST_NS UINT64_C(10000000000)

static inline void sleep_until(uint64_t ns)
{
    struct timespec until = vcuda_span(ns);
    int before = errno;
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    errno = before;
}

static inline void sleep_for(uint64_t ns)
{
    struct timespec span = vcuda_span(ns);
    int before = errno;
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &span, NULL);
    errno = before;
}

/* False: long enough. `began` 0 at first. */
static inline bool sleep_again(uint64_t *began)
{
    uint64_t now = vcuda_now_ns();
    *began = *began == 0 ? now : *began;
    sleep_for(SLEEP_SHORT_NS);
    return now < *began + SLEEP_MOST_NS;
}

static inline int cancel_off(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancel_back(int before)
{
    pthread_setcancelstate(before, NULL);
}

#endif
