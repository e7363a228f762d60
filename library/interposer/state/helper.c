/*
 * The helper thread: one per process, made when the first tick is registered, gone after fork and made anew by the child's first registration.
 *
 * All signals are blocked in it, it is detached and never waited for: a process that ends does not hear of it. On exit ticks stop touching the
 * driver (vcuda_leaving), and a tick at work gets a moment to end, because the driver takes itself apart next. Where no thread can be made,
 * ticks run on threads that call vcuda_helper_poll.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_TICKS = 8, STACK = 512 * 1024, RETRY_S = 10, FAREWELL_NS = 20000000, BUSY_NS = 10000000 };
enum thread_state { THREAD_NONE, THREAD_RUNS, THREAD_REFUSED };

struct slot {
    vcuda_tick *_Atomic run;
    _Atomic uint64_t due_ns;
};

static struct slot ticks[MAX_TICKS];
static _Atomic uint32_t thread;         /* enum thread_state */
static _Atomic uint64_t refused_ns;
static _Atomic uint32_t bell;           /* counts wakes; the thread sleeps on it */
static _Atomic bool sleeping;
static _Atomic uint32_t working;        /* a thread runs ticks */
static _Atomic bool leaving, farewell_registered;

static void ring(void)
{
    atomic_fetch_add(&bell, 1);
    if (atomic_load(&sleeping))
        syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Runs what is due; returns when the next is. Where another thread is at it, in a moment. */
static uint64_t run_due(void)
{
    uint32_t idle = 0;
    uint64_t next = UINT64_MAX;
    int cancel_state;
    if (!atomic_compare_exchange_strong(&working, &idle, 1))
        return vcuda_now_ns() + BUSY_NS;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    for (int i = 0; i < MAX_TICKS && !atomic_load(&leaving); i++) {
        vcuda_tick *run = atomic_load(&ticks[i].run);
        uint64_t now = vcuda_now_ns(), due = atomic_load(&ticks[i].due_ns);
        if (run != NULL && due <= now) {
            /* A wake that comes while it runs sets due_ns to 0 and must not be lost. */
            atomic_store(&ticks[i].due_ns, UINT64_MAX);
            uint64_t wanted = run(now), untouched = UINT64_MAX;
            atomic_compare_exchange_strong(&ticks[i].due_ns, &untouched, wanted);
            due = atomic_load(&ticks[i].due_ns);
        }
        if (run != NULL && due < next)
            next = due;
    }
    atomic_store(&working, 0);
    if (atomic_load(&leaving))
        syscall(SYS_futex, &working, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_setcancelstate(cancel_state, NULL);
    return next;
}

static void sleep_until(uint32_t heard, uint64_t next)
{
    uint64_t now = vcuda_now_ns(), wait = next > now ? next - now : 0;
    struct timespec span = {.tv_sec = (time_t)(wait / UINT64_C(1000000000)), .tv_nsec = (long)(wait % UINT64_C(1000000000))};
    atomic_store(&sleeping, true);
    if (wait != 0)
        syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, heard, next == UINT64_MAX ? NULL : &span, NULL, 0);
    atomic_store(&sleeping, false);
}

static void *work(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "vcuda-helper");
    while (!atomic_load(&leaving)) {
        uint32_t heard = atomic_load(&bell);
        sleep_until(heard, run_due());
    }
    return NULL;
}

static void say_farewell(void)
{
    struct timespec bound = {.tv_nsec = FAREWELL_NS};
    atomic_store(&leaving, true);
    if (atomic_load(&working) != 0)
        syscall(SYS_futex, &working, FUTEX_WAIT_PRIVATE, 1, &bound, NULL, 0);
}

/* 0 or an error. A thread's stack also holds its thread-local storage, which may be large: the system's size is tried next. */
static int make_thread(size_t stack)
{
    pthread_t made;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack != 0)
        pthread_attr_setstacksize(&attributes, stack);
    int error = pthread_create(&made, &attributes, work, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static void start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = make_thread(STACK);
    if (error == EINVAL)
        error = make_thread(0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!atomic_exchange(&farewell_registered, true))
        atexit(say_farewell);
    if (error != 0) {
        atomic_store(&refused_ns, vcuda_now_ns());
        atomic_store(&thread, THREAD_REFUSED);
        vcuda_warn(TOPIC_HELPER, "no helper thread can be made (error %d): its work is done by the program's calls", error);
    }
}

static void ensure_thread(void)
{
    uint32_t state = atomic_load_explicit(&thread, memory_order_relaxed);
    if (state == THREAD_RUNS)
        return;
    if (state == THREAD_REFUSED && vcuda_now_ns() - atomic_load(&refused_ns) < RETRY_S * UINT64_C(1000000000))
        return;
    if (!atomic_load(&leaving) && atomic_compare_exchange_strong(&thread, &state, THREAD_RUNS))
        start();
}

static bool add(vcuda_tick *tick)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        vcuda_tick *held = NULL;
        if (atomic_load_explicit(&ticks[i].run, memory_order_relaxed) == tick)
            return false;
        if (atomic_compare_exchange_strong(&ticks[i].run, &held, tick) || held == tick)
            return held == NULL;
    }
    return false;
}

void vcuda_helper_add(vcuda_tick *tick)
{
    vcuda_attach();
    if (add(tick))
        ring();
    ensure_thread();
}

void vcuda_helper_wake(vcuda_tick *tick)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        if (atomic_load(&ticks[i].run) == tick) {
            atomic_store(&ticks[i].due_ns, 0);
            ring();
        }
    }
}

void vcuda_helper_poll(void)
{
    if (atomic_load_explicit(&thread, memory_order_relaxed) == THREAD_REFUSED)
        run_due();
}

bool vcuda_leaving(void)
{
    return atomic_load(&leaving);
}

void helper_forget(void)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        atomic_store(&ticks[i].run, NULL);
        atomic_store(&ticks[i].due_ns, 0);
    }
    atomic_store(&thread, THREAD_NONE);
    atomic_store(&working, 0);
    atomic_store(&sleeping, false);
}

static uint64_t watch(uint64_t now_ns)
{
    vcuda_refresh();
    slot_reap_now_and_then();
    return now_ns + UINT64_C(250000000);
}

void vcuda_helper_watch(void)
{
    if (vcuda_limits()->origin != LIMITS_ABSENT)
        vcuda_helper_add(watch);
}
