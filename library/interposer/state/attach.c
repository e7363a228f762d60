/* Attaching: once per process, by its first call, and once more in a forked child. Not a pthread_once: see once.h. */
#include <pthread.h>

#include "internal.h"
#include "once.h"

enum { MAX_CALLBACKS = 8 };

_Atomic uint32_t vcuda_attached;
static struct once attaching;
static _Atomic bool handled;    /* the fork handler is registered; children inherit it */
static void (*_Atomic children[MAX_CALLBACKS])(void);

/* In a forked child, before it runs on. */
static void forget(void)
{
    atomic_store(&vcuda_attached, 0);
    atomic_store(&attaching.holder, 0);
    limits_forget();
    region_forget();
    slot_forget();
    reap_forget();
    lenders_forget();
    helper_forget();
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        void (*child)(void) = atomic_load(&children[i]);
        if (child != NULL)
            child();
    }
}

static bool is_attached(void)
{
    return atomic_load_explicit(&vcuda_attached, memory_order_acquire) != 0;
}

void vcuda_attach_now(void)
{
    if (!once_enter(&attaching, is_attached))
        return;
    if (!atomic_load(&handled))
        atomic_store(&handled, pthread_atfork(helper_before_fork, helper_after_fork, forget) == 0);
    paths_find();
    node_clock_look();
    limits_load();
    atomic_store(&vcuda_attached, 1);
    once_leave(&attaching);
    limits_announce();
}

void vcuda_on_fork(void (*child)(void))
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        void (*held)(void) = NULL;
        if (atomic_compare_exchange_strong(&children[i], &held, child) || held == child)
            return;
    }
}
