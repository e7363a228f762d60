/* See once.h. */
#include "once.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAITS = 250, WAIT_NS = 20000000 };

static void wait_for(struct once *once, uint32_t holder)
{
    struct timespec bound = {.tv_nsec = WAIT_NS};
    syscall(SYS_futex, &once->holder, FUTEX_WAIT_PRIVATE, holder, &bound, NULL, 0);
}

bool once_enter(struct once *once, bool (*done)(void))
{
    uint32_t self = (uint32_t)getpid();
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    for (int waits = 0; waits < WAITS && !done();) {
        uint32_t holder = atomic_load(&once->holder);
        if (holder == self) {
            wait_for(once, holder);
            waits++;
        } else if (atomic_compare_exchange_strong(&once->holder, &holder, self)) {
            once->cancel_state = cancel_state;
            if (!done())
                return true;
            once_leave(once);
        }
    }
    pthread_setcancelstate(cancel_state, NULL);
    return false;
}

void once_leave(struct once *once)
{
    int cancel_state = once->cancel_state;
    atomic_store(&once->holder, 0);
    syscall(SYS_futex, &once->holder, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    pthread_setcancelstate(cancel_state, NULL);
}
