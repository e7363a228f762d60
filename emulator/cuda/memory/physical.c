/* See physical.h. */
#include "physical.h"

#include <pthread.h>
#include <stdlib.h>

#include "../usage.h"
#include "sharing.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *evictables;
static uint64_t last_id;

void memory_lock(void)
{
    pthread_mutex_lock(&lock);
}

void memory_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* One piece of this process's managed memory gives way; its content stays where it is. */
static bool evict(int device)
{
    for (struct physical *at = evictables; at != NULL; at = at->next_evictable) {
        if (at->device != device || at->charge == 0)
            continue;
        usage_give(device, at->charge);
        at->charge = 0;
        return true;
    }
    return false;
}

static bool take(int device, uint64_t size)
{
    if (usage_take(device, size))
        return true;
    while (evict(device)) {
        if (usage_take(device, size))
            return true;
    }
    return false;
}

static bool charge(struct physical *physical, const struct physical_request *request)
{
    uint64_t size = physical->span.size;
    if (request->imported || request->device == HOST)
        return true;
    if (request->evictable ? usage_take(request->device, size) : take(request->device, size))
        physical->charge = size;
    return physical->charge != 0 || request->evictable; /* oversubscription: it begins on the host */
}

static void uncharge(struct physical *physical)
{
    if (physical->charge != 0)
        usage_give(physical->device, physical->charge);
    physical->charge = 0;
}

static bool place(struct physical *physical, const struct physical_request *request)
{
    uint64_t size = physical->span.size;
    physical->span.start = space_take(request->zone, size, SPACE_UNIT);
    if (physical->span.start == 0)
        return false;
    if (!request->exposed || space_expose(physical->span.start, size))
        return true;
    space_give(physical->span.start, size);
    return false;
}

struct physical *physical_make(const struct physical_request *request)
{
    struct physical *physical = request->size > UINT64_MAX - SPACE_UNIT ? NULL : malloc(sizeof *physical);
    if (physical == NULL)
        return NULL;
    *physical = (struct physical){.device = request->device, .id = ++last_id, .exposed = request->exposed, .evictable = request->evictable};
    physical->span.size = (request->size + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
    if (!charge(physical, request)) {
        free(physical);
        return NULL;
    }
    if (!place(physical, request)) {
        uncharge(physical);
        free(physical);
        return NULL;
    }
    if (physical->evictable) {
        physical->next_evictable = evictables;
        evictables = physical;
    }
    return physical;
}

static void forget_evictable(const struct physical *physical)
{
    for (struct physical **at = &evictables; *at != NULL; at = &(*at)->next_evictable) {
        if (*at == physical) {
            *at = physical->next_evictable;
            return;
        }
    }
}

void physical_unmake(struct physical *physical)
{
    uint64_t start = physical->span.start, size = physical->span.size;
    if (physical->evictable)
        forget_evictable(physical);
    if (physical->exposed)
        space_hide(start, size);
    if (physical->sharing != NULL)
        sharing_end(physical);
    else if (physical->touched_to > physical->touched_from)
        space_discard(start + physical->touched_from, physical->touched_to - physical->touched_from);
    uncharge(physical);
    space_give(start, size);
    free(physical);
}

void *physical_content(const struct physical *physical)
{
    return physical->exposed ? (void *)(uintptr_t)physical->span.start : space_content(physical->span.start);
}

void physical_touch(struct physical *physical, uint64_t offset, uint64_t size)
{
    if (physical->touched_to == 0 || offset < physical->touched_from)
        physical->touched_from = offset;
    if (offset + size > physical->touched_to)
        physical->touched_to = offset + size;
}
