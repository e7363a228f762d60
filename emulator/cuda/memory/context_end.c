/*
 * What the end of a context means for memory: everything that was allocated or registered in it goes with it. Memory of handles,
 * pools and graphs belongs to devices and stays.
 */
#include "../context.h"
#include "../memory.h"
#include "array.h"
#include "foreign.h"
#include "host.h"
#include "linear.h"

static void end(struct allocation *allocation, void *with)
{
    if (allocation->context == NULL || allocation->context != *(const CUcontext *)with)
        return;
    switch (allocation->kind) {
    case ALLOCATION_LINEAR:
    case ALLOCATION_MANAGED:
        linear_release(allocation);
        return;
    case ALLOCATION_HOST:
    case ALLOCATION_REGISTERED:
        host_release(allocation);
        return;
    case ALLOCATION_ARRAY:
        array_release(allocation);
        return;
    case ALLOCATION_OPENED:
        allocation->flags = 1;
        foreign_release(allocation);
        return;
    default:
        return;
    }
}

void memory_context_gone(struct context *context)
{
    CUcontext handle = context_handle(context);
    memory_lock();
    allocation_each(end, &handle);
    memory_unlock();
}
