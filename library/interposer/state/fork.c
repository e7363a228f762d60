/*
 * Forking: what a child forgets of its parent before it runs on.
 *
 * In: functions of those who keep something of this process alone, registered before they keep it. Out: calls of them in each child.
 * Invariant: the handler is registered once, by one thread (see once.h), and children inherit it. A fork in the middle of that may register it once
 * more in the child: to forget twice does nothing.
 */
#include <pthread.h>

#include "internal.h"
#include "once.h"

enum { MAX_CALLBACKS = 16 };

static struct once registering;
static _Atomic bool registered;
static void (*_Atomic children[MAX_CALLBACKS])(void);

static void forget(void)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        void (*child)(void) = atomic_load(&children[i]);
        if (child != NULL)
            child();
    }
}

static bool is_registered(void)
{
    return atomic_load_explicit(&registered, memory_order_acquire);
}

static void add(void (*child)(void))
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        void (*held)(void) = NULL;
        if (atomic_compare_exchange_strong(&children[i], &held, child) || held == child)
            return;
    }
}

void vcuda_on_fork(void (*child)(void))
{
    add(child);
    if (is_registered() || !once_enter(&registering, is_registered))
        return;
    atomic_store(&registered, pthread_atfork(NULL, NULL, forget) == 0);
    once_leave(&registering);
}
