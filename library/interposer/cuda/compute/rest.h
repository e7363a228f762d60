/*
 * Sleeping and cancellation: neither of the two may leave a lane, a lock or a reservation half done.
 * A sleep of ours is no cancellation point, and what holds something over a call that is one (the driver's may be) is done with cancellation off.
 */
#ifndef VCUDA_COMPUTE_REST_H
#define VCUDA_COMPUTE_REST_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REST_SHORT_NS UINT64_C(20000)

static inline void rest_until(uint64_t ns)
{
    struct timespec until = {.tv_sec = (time_t)(ns / UINT64_C(1000000000)), .tv_nsec = (long)(ns % UINT64_C(1000000000))};
    int before = errno;
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    errno = before;
}

static inline void rest(uint64_t ns)
{
    struct timespec span = {.tv_nsec = (long)ns};
    int before = errno;
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &span, NULL);
    errno = before;
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
