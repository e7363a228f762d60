/*
 * The library's two threads: the helper, which must be prompt, and the NVML poller, which calls what may be slow (NVML) and so delays only itself.
 * Each is made when its first tick is registered; after fork the child's first registration makes it again.
 *
 * All signals are blocked in them, and they are detached: a process that ends does not wait for them. On exit ticks stop calling the driver
 * (vcuda_leaving), and a running tick gets a moment to end, because the driver frees its state next. A fork also waits a moment for the
 * poller's tick: a lock that it holds inside NVML would stay locked in the child. Where no helper can be made, its ticks run on threads that
 * call vcuda_helper_poll; the poller's ticks run on no thread of the application.
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
#include "once.h"

enum { MAX_TICKS = 8, RETRY_NS = 250000000, FAREWELL_NS = 20000000, BUSY_NS = 10000000 };
static const uint64_t fork_patience_ns = UINT64_C(100000000);
enum thread_state { THREAD_NONE, THREAD_RUNS, THREAD_REFUSED };

struct slot {
    vcuda_tick *_Atomic run;
    _Atomic uint64_t due_ns;
};

struct worker {
    const char *name;
    size_t stack;
    struct slot ticks[MAX_TICKS];
    _Atomic uint32_t thread;        /* enum thread_state */
    _Atomic uint64_t refused_ns;
    _Atomic uint32_t bell;          /* counts wakes; the thread sleeps on it */
    _Atomic bool sleeping;
    _Atomic uint32_t working;       /* a thread runs ticks */
    _Atomic uint32_t stays;         /* how often one began to */
};

static struct worker helper = {.name = "vcuda-helper", .stack = 512 * 1024}, poller = {.name = "vcuda-poller", .stack = 1024 * 1024};
static _Atomic bool leaving, farewell_registered;
static struct once registering;
static _Atomic bool registered;         /* the fork handlers are; children inherit them */
static _Atomic uint32_t forking;        /* threads in fork: the poller begins nothing */
static _Atomic uint32_t hung;           /* the stay of the poller that a fork has waited for in vain */
static _Atomic long poller_thread;       /* its number, while it works */

static void ring(struct worker *worker)
{
    atomic_fetch_add(&worker->bell, 1);
    if (atomic_load(&worker->sleeping))
        syscall(SYS_futex, &worker->bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* A wake that comes while it runs sets due_ns to 0 and must not be lost. */
static uint64_t run_tick(struct slot *slot, vcuda_tick *run, uint64_t now)
{
    uint64_t untouched = UINT64_MAX;
    atomic_store(&slot->due_ns, UINT64_MAX);
    uint64_t wanted = run(now);
    atomic_compare_exchange_strong(&slot->due_ns, &untouched, wanted);
    return atomic_load(&slot->due_ns);
}

static uint64_t run_each(struct worker *worker)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < MAX_TICKS && !atomic_load(&leaving); i++) {
        vcuda_tick *run = atomic_load(&worker->ticks[i].run);
        uint64_t now = vcuda_now_ns(), due = atomic_load(&worker->ticks[i].due_ns);
        if (run != NULL && due <= now)
            due = run_tick(&worker->ticks[i], run, now);
        if (run != NULL && due < next)
            next = due;
    }
    return next;
}

static bool must_wait(const struct worker *worker)
{
    return worker == &poller && atomic_load(&forking) != 0;
}

/* Runs what is due; returns when the next is. Where another thread is at it, in a moment. */
static uint64_t run_due(struct worker *worker)
{
    uint32_t idle = 0;
    uint64_t next = vcuda_now_ns() + BUSY_NS;
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (atomic_compare_exchange_strong(&worker->working, &idle, 1)) {
        atomic_fetch_add(&worker->stays, 1);
        if (worker == &poller)
            atomic_store(&poller_thread, syscall(SYS_gettid));
        if (!must_wait(worker))
            next = run_each(worker);
        atomic_store(&worker->working, 0);
        if (atomic_load(&leaving) || must_wait(worker))
            syscall(SYS_futex, &worker->working, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
    pthread_setcancelstate(cancel_state, NULL);
    return next;
}

static void sleep_until(struct worker *worker, uint32_t heard, uint64_t next)
{
    uint64_t now = vcuda_now_ns(), wait = next > now ? next - now : 0;
    struct timespec span = vcuda_span(wait);
    atomic_store(&worker->sleeping, true);
    if (wait != 0)
        syscall(SYS_futex, &worker->bell, FUTEX_WAIT_PRIVATE, heard, next == UINT64_MAX ? NULL : &span, NULL, 0);
    atomic_store(&worker->sleeping, false);
}

static void *work(void *given)
{
    struct worker *worker = given;
    prctl(PR_SET_NAME, worker->name);
    while (!atomic_load(&leaving)) {
        uint32_t heard = atomic_load(&worker->bell);
        sleep_until(worker, heard, run_due(worker));
    }
    return NULL;
}

static void wait_idle(struct worker *worker, uint64_t deadline_ns)
{
    for (uint64_t now = vcuda_now_ns(); now < deadline_ns && atomic_load(&worker->working) != 0; now = vcuda_now_ns()) {
        struct timespec bound = vcuda_span(deadline_ns - now);
        syscall(SYS_futex, &worker->working, FUTEX_WAIT_PRIVATE, 1, &bound, NULL, 0);
    }
}

static void say_farewell(void)
{
    uint64_t deadline_ns = vcuda_now_ns() + FAREWELL_NS;
    atomic_store(&leaving, true);
    wait_idle(&helper, deadline_ns);
    wait_idle(&poller, deadline_ns);
}

/* A poller that hangs in NVML is waited for once, not at each fork. NVML itself may fork (nvidia-modprobe): that is the poller's own. */
static void before_fork(void)
{
    atomic_fetch_add(&forking, 1);
    uint32_t stay = atomic_load(&poller.stays);
    if (atomic_load(&poller.working) == 0 || atomic_load(&hung) == stay || vcuda_poller_is_here())
        return;
    wait_idle(&poller, vcuda_now_ns() + fork_patience_ns);
    if (atomic_load(&poller.working) != 0)
        atomic_store(&hung, atomic_load(&poller.stays));
}

static void after_fork(void)
{
    atomic_fetch_sub(&forking, 1);
    ring(&poller);
}

static void forget(struct worker *worker)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        atomic_store(&worker->ticks[i].run, NULL);
        atomic_store(&worker->ticks[i].due_ns, 0);
    }
    atomic_store(&worker->thread, THREAD_NONE);
    atomic_store(&worker->working, 0);
    atomic_store(&worker->sleeping, false);
}

static void in_child(void)
{
    forget(&helper);
    forget(&poller);
    atomic_store(&forking, 0);
}

static bool is_registered(void)
{
    return atomic_load_explicit(&registered, memory_order_acquire);
}

/* All three together: a fork that has begun runs none of them, so that `forking` is lowered as often as it is raised. */
static void handle_forks(void)
{
    if (is_registered() || !once_enter(&registering, is_registered))
        return;
    atomic_store(&registered, pthread_atfork(before_fork, after_fork, in_child) == 0);
    once_leave(&registering);
}

/* 0 or an error. A thread's stack also holds its thread-local storage, which may be large: the system's size is tried next. */
static int make_thread(struct worker *worker, size_t stack)
{
    pthread_t made;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack != 0)
        pthread_attr_setstacksize(&attributes, stack);
    int error = pthread_create(&made, &attributes, work, worker);
    pthread_attr_destroy(&attributes);
    return error;
}

static void start(struct worker *worker)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = make_thread(worker, worker->stack);
    if (error == EINVAL)
        error = make_thread(worker, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!atomic_exchange(&farewell_registered, true))
        atexit(say_farewell);
    if (error != 0) {
        atomic_store(&worker->refused_ns, vcuda_now_ns());
        atomic_store(&worker->thread, THREAD_REFUSED);
        vcuda_warn(TOPIC_HELPER, "no helper thread can be made (error %d): its work is done by the program's calls", error);
    }
}

static void ensure_thread(struct worker *worker)
{
    uint32_t state = atomic_load_explicit(&worker->thread, memory_order_relaxed);
    if (state == THREAD_RUNS)
        return;
    if (state == THREAD_REFUSED && vcuda_now_ns() - atomic_load(&worker->refused_ns) < RETRY_NS)
        return;
    if (!atomic_load(&leaving) && atomic_compare_exchange_strong(&worker->thread, &state, THREAD_RUNS))
        start(worker);
}

static bool add(struct worker *worker, vcuda_tick *tick)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        vcuda_tick *held = NULL;
        if (atomic_load_explicit(&worker->ticks[i].run, memory_order_relaxed) == tick)
            return false;
        if (atomic_compare_exchange_strong(&worker->ticks[i].run, &held, tick) || held == tick)
            return held == NULL;
    }
    return false;
}

bool vcuda_poller_is_here(void)
{
    return atomic_load(&poller.working) != 0 && atomic_load(&poller_thread) == syscall(SYS_gettid);
}

static void add_and_start(struct worker *worker, vcuda_tick *tick)
{
    handle_forks();
    if (add(worker, tick))
        ring(worker);
    ensure_thread(worker);
}

void vcuda_helper_add(vcuda_tick *tick)
{
    add_and_start(&helper, tick);
}

bool vcuda_poller_add(vcuda_tick *tick)
{
    add_and_start(&poller, tick);
    return atomic_load(&poller.thread) == THREAD_RUNS && !atomic_load(&leaving);
}

static void wake(struct worker *worker, vcuda_tick *tick)
{
    for (int i = 0; i < MAX_TICKS; i++) {
        if (atomic_load(&worker->ticks[i].run) == tick) {
            atomic_store(&worker->ticks[i].due_ns, 0);
            ring(worker);
        }
    }
}

void vcuda_helper_wake(vcuda_tick *tick)
{
    wake(&helper, tick);
}

void vcuda_poller_wake(vcuda_tick *tick)
{
    wake(&poller, tick);
}

void vcuda_helper_poll(void)
{
    if (atomic_load_explicit(&helper.thread, memory_order_relaxed) != THREAD_REFUSED)
        return;
    ensure_thread(&helper);
    run_due(&helper);
}

bool vcuda_leaving(void)
{
    return atomic_load(&leaving);
}
