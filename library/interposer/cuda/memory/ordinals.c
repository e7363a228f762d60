/* See ordinals.h. */
#include "ordinals.h"

#include <stdatomic.h>

#include "abi/limits.h"

static _Atomic int after[LIMITS_MAX_DEVICES];   /* the ordinal + 1; 0: none */

void ordinals_note(unsigned index, int device)
{
    atomic_store_explicit(&after[index], device + 1, memory_order_relaxed);
}

int ordinals_get(unsigned index)
{
    return atomic_load_explicit(&after[index], memory_order_relaxed) - 1;
}

void ordinals_forget(void)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&after[i], 0);
}
