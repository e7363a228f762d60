/* Attaching: once per process, by its first call, and once more in a forked child. Not a pthread_once: see once.h. */
#include "internal.h"
#include "once.h"

_Atomic uint32_t vcuda_attached;
static struct once attaching;

static void forget(void)
{
    atomic_store(&vcuda_attached, 0);
    atomic_store(&attaching.holder, 0);
    limits_forget();
}

static bool is_attached(void)
{
    return atomic_load_explicit(&vcuda_attached, memory_order_acquire) != 0;
}

void vcuda_attach_now(void)
{
    if (!once_enter(&attaching, is_attached))
        return;
    vcuda_on_fork(forget);
    paths_find();
    node_clock_look();
    limits_load();
    atomic_store(&vcuda_attached, 1);
    once_leave(&attaching);
    limits_announce();
}
