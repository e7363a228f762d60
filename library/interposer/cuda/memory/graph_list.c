/* The list; see graph_list.h. A graph may be running from its launch until the event behind it. */
#include "graph_list.h"

#include <stdlib.h>

#include "charging.h"
#include "reclaim.h"

_Atomic uint32_t graphs_known;
pthread_mutex_t graph_list_lock = PTHREAD_MUTEX_INITIALIZER;

static struct executable *executables;
static _Atomic uint64_t allocated[LIMITS_MAX_DEVICES];

struct executable *graph_list_find(CUgraphExec handle)
{
    struct executable *at = executables;

    while (at != NULL && (at->handle == NULL || at->handle != handle))
        at = at->next;
    return at;
}

static void drop(struct executable *executable)
{
    struct executable **at = &executables;

    while (*at != executable)
        at = &(*at)->next;
    *at = executable->next;
    if (executable->event != NULL && !executable->ending)
        DRIVER(cuEventDestroy_v2, executable->event);
    free(executable->memory);
    free(executable);
    atomic_fetch_sub(&graphs_known, 1);
}

void graph_list_look(void)
{
    CUstreamCaptureMode mode = reclaim_begin();
    struct executable *next;

    for (struct executable *at = executables; at != NULL; at = next) {
        next = at->next;
        if (at->ending)
            continue;
        at->running = at->running && at->event != NULL && DRIVER(cuEventQuery, at->event) == CUDA_ERROR_NOT_READY;
        if (!at->running && at->handle == NULL)
            drop(at);
    }
    reclaim_end(mode);
}

static bool is_active(const struct executable *executable)
{
    return executable->launching || executable->running;
}

static uint64_t transient_on(const struct executable *executable, int device)
{
    for (unsigned i = 0; i < executable->memory->part_count; i++)
        if (executable->memory->parts[i].device == device)
            return executable->memory->parts[i].transient;
    return 0;
}

/* Whether it is the first among those that need most in its stream, where `besides` does not count. */
static bool is_greatest(const struct executable *executable, const struct executable *besides, int device)
{
    uint64_t own = transient_on(executable, device);
    bool passed = false;

    for (const struct executable *at = executables; at != NULL; at = at->next) {
        passed |= at == executable;
        if (at == executable || at == besides || !is_active(at) || at->stream != executable->stream)
            continue;
        if (transient_on(at, device) > own || (!passed && transient_on(at, device) == own))
            return false;
    }
    return true;
}

/* What an earlier launch of it left, and nobody freed. */
static uint64_t left_before(const struct executable *executable, int device)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < executable->memory->range_count; i++) {
        const struct graph_range *range = &executable->memory->ranges[i];
        if (range->device == device && range->left != 0 && charges_has(&charged_pointers, range->address))
            bytes += range->left;
    }
    return bytes;
}

/* What it is about to leave. */
static uint64_t leaves(const struct executable *executable, int device)
{
    uint64_t before = executable->launching ? left_before(executable, device) : 0;

    for (unsigned i = 0; i < executable->memory->part_count && executable->launching; i++)
        if (executable->memory->parts[i].device == device && executable->memory->parts[i].left > before)
            return executable->memory->parts[i].left - before;
    return 0;
}

/* What those that run in other streams need. */
static uint64_t needed_beside(const struct executable *executable, uint64_t *in_stream, int device)
{
    uint64_t bytes = 0;

    *in_stream = transient_on(executable, device);
    for (const struct executable *at = executables; at != NULL; at = at->next) {
        if (at == executable || !is_active(at))
            continue;
        uint64_t own = transient_on(at, device);
        bytes += leaves(at, device);
        if (at->stream == executable->stream)
            *in_stream = own > *in_stream ? own : *in_stream;
        else if (is_greatest(at, executable, device))
            bytes += own;
    }
    return bytes;
}

/* All that graphs need on the device when this one is launched in its stream. */
uint64_t graph_list_needed(const struct executable *executable, const struct graph_part *part, unsigned index, bool *beside)
{
    uint64_t in_stream, others = needed_beside(executable, &in_stream, part->device), before = left_before(executable, part->device);
    uint64_t all = atomic_load(&allocated[index]);

    *beside = others != 0;
    return (all > before ? all - before : 0) + part->left + in_stream + others;
}

void graph_list_left(unsigned index, uint64_t bytes)
{
    atomic_fetch_add(&allocated[index], bytes);
}

void graphs_freed(unsigned index, uint64_t bytes)
{
    atomic_fetch_sub(&allocated[index], bytes);
}

/* ---- made and destroyed ---- */

bool graphs_made(CUgraphExec exec, struct graph_memory *memory)
{
    bool done = true;

    pthread_mutex_lock(&graph_list_lock);
    struct executable *executable = graph_list_find(exec);
    if (executable != NULL && memory != NULL) {
        free(executable->memory);
        executable->memory = memory;
    } else if (memory != NULL) {
        executable = calloc(1, sizeof *executable);
        done = executable != NULL;
        if (done) {
            *executable = (struct executable){.handle = exec, .memory = memory, .next = executables};
            executables = executable;
            atomic_fetch_add(&graphs_known, 1);
        }
    } else if (executable != NULL) {
        drop(executable);
    }
    pthread_mutex_unlock(&graph_list_lock);
    return done;
}

void graphs_gone(CUgraphExec exec)
{
    pthread_mutex_lock(&graph_list_lock);
    struct executable *executable = graph_list_find(exec);
    if (executable != NULL && executable->running)
        executable->handle = NULL;
    else if (executable != NULL)
        drop(executable);
    pthread_mutex_unlock(&graph_list_lock);
}

void graphs_context_ends(CUcontext context, enum context_fate fate)
{
    pthread_mutex_lock(&graph_list_lock);
    for (struct executable *at = executables; at != NULL; at = at->next) {
        if (at->context != context)
            continue;
        at->ending = fate == CONTEXT_ENDING;
        if (fate != CONTEXT_GONE)
            continue;
        at->context = NULL;
        at->event = NULL;
        at->running = false;
    }
    pthread_mutex_unlock(&graph_list_lock);
}

void graph_list_forget(void)
{
    graph_list_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    executables = NULL;
    atomic_store(&graphs_known, 0);
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&allocated[i], 0);
}
