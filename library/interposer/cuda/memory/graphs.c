/*
 * Executable graphs; see graphs.h.
 *
 * A launch that needs more than is charged while others are running waits a
 * while for them before it is refused: on a full GPU the driver would let it follow them.
 */
#include "graph_list.h"

#include <time.h>
#include <unistd.h>

#include "account.h"
#include "charging.h"
#include "interposer/cuda/compute/process.h"
#include "pools.h"
#include "reclaim.h"
#include "stream_device.h"

#define GRAPHS_PATIENCE_NS UINT64_C(2000000000)
#define PAUSE_NS 2000000

static uint64_t asked[LIMITS_MAX_DEVICES];      /* of the ledger at present, not charged yet; with the list's lock */

/* ---- one device's admission ---- */

struct admission {
    struct executable *executable;
    const struct graph_part *part;
    struct pool *pool;
    unsigned index;
    bool beside;            /* others run */
};

static uint64_t growth_of(struct admission *admission)
{
    uint64_t all = graph_list_needed(admission->executable, admission->part, admission->index, &admission->beside);
    uint64_t charged = pools_charged(admission->pool) + asked[admission->index];

    return all > charged ? all - charged : 0;
}

/* How much more it needs, which is asked for from then on. Who runs is looked at only where that matters. */
static uint64_t ask(struct admission *admission)
{
    pthread_mutex_lock(&graph_list_lock);
    uint64_t growth = growth_of(admission);
    if (growth != 0 && admission->beside) {
        graph_list_look();
        growth = growth_of(admission);
    }
    asked[admission->index] += growth;
    pthread_mutex_unlock(&graph_list_lock);
    return growth;
}

static void answer(struct admission *admission, uint64_t growth, bool taken)
{
    pthread_mutex_lock(&graph_list_lock);
    asked[admission->index] -= growth;
    if (taken)
        pools_raise(admission->pool, growth);
    pthread_mutex_unlock(&graph_list_lock);
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* False: there is nothing to wait for, or not any longer. */
static bool wait_for_others(const struct admission *admission, uint64_t *deadline_ns)
{
    uint64_t now_ns = monotonic_ns();

    if (*deadline_ns == 0) {
        *deadline_ns = now_ns + GRAPHS_PATIENCE_NS;
        return true;
    }
    if (!admission->beside || now_ns > *deadline_ns)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return true;
}

/* With the pool held, before and after. `*grown`: more was taken. */
static bool admit(struct admission *admission, bool *grown)
{
    uint64_t deadline_ns = 0;

    for (;;) {
        uint64_t growth = ask(admission);
        bool taken = growth == 0 || account_try(admission->index, growth);
        answer(admission, growth, taken && growth != 0);
        *grown |= taken && growth != 0;
        if (taken)
            return true;
        pools_let_go(admission->pool);
        account_reclaim(admission->index);
        pools_hold(admission->pool);
        if (!wait_for_others(admission, &deadline_ns))
            break;
    }
    account_refused(admission->index);
    return false;
}

/* ---- all devices of a launch ---- */

/* The devices of which a launch holds what the driver keeps for graphs; a bit for each. */
static void settle(struct account_span span, uint32_t devices, bool read)
{
    for (unsigned index = 0; devices >> index != 0; index++) {
        if ((devices >> index & 1) == 0)
            continue;
        struct pool *pool = reclaim_graphs(index);
        pools_let_go(pool);
        if (read)
            pools_read(pool, reclaim_read_pool);
    }
    account_end(&span);
}

static bool admit_all(struct executable *executable, bool *grown)
{
    bool admitted = true;

    for (unsigned i = 0; i < executable->memory->part_count && admitted; i++) {
        struct admission admission = {.executable = executable, .part = &executable->memory->parts[i]};
        enum verdict verdict = account_verdict(admission.part->device, &admission.index);
        if (verdict == VERDICT_PASS)
            continue;
        admission.pool = verdict == VERDICT_COUNT ? reclaim_graphs(admission.index) : NULL;
        if (admission.pool == NULL)
            return false;
        pools_hold(admission.pool);
        executable->devices |= UINT32_C(1) << admission.index;
        admitted = admit(&admission, grown);
    }
    return admitted;
}

/* The driver took more than a graph needs, as it rounds: more than there is. */
static bool overran(uint32_t devices)
{
    bool over = false;

    for (unsigned index = 0; devices >> index != 0 && !over; index++) {
        if ((devices >> index & 1) == 0)
            continue;
        pools_read(reclaim_graphs(index), reclaim_read_pool);
        over = account_overrun(index);
    }
    return over;
}

static void relieve(uint32_t devices)
{
    for (unsigned index = 0; devices >> index != 0; index++)
        if (devices >> index & 1)
            reclaim_trim(index);
}

static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
    CUstreamCaptureMode mode = reclaim_begin();
    CUresult error = per_thread ? DRIVER(cuGraphUpload_ptsz, exec, stream) : DRIVER(cuGraphUpload, exec, stream);

    reclaim_end(mode);
    return error;
}

/* Which stream it is, whatever its handle stands for in this thread. */
static uint64_t stream_number(CUstream stream, bool per_thread)
{
    unsigned long long number = (uintptr_t)stream;
    CUcontext context = NULL;
    bool own = stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread);

    if (!own && stream != NULL && stream != CU_STREAM_LEGACY) {
        if (HAS(cuStreamGetId) && DRIVER(cuStreamGetId, stream, &number) == CUDA_SUCCESS)
            return number;
        return (uintptr_t)stream;
    }
    DRIVER(cuCtxGetCurrent, &context);
    return ((uintptr_t)context << 1 | 1) ^ (own ? (uint64_t)(uintptr_t)&hook_depth << 16 : 0);
}

/* Into the state of being launched; NULL: not one of ours, or it only becomes part of another graph. */
static struct executable *enter(CUgraphExec exec, CUstream stream, bool per_thread)
{
    if (hook_nested() || !account_needed())
        return NULL;
    pthread_mutex_lock(&graph_list_lock);
    bool known = graph_list_find(exec) != NULL;
    pthread_mutex_unlock(&graph_list_lock);
    if (!known || stream_captures(stream, per_thread))
        return NULL;
    uint64_t number = stream_number(stream, per_thread);
    pthread_mutex_lock(&graph_list_lock);
    struct executable *executable = graph_list_find(exec);
    if (executable != NULL) {
        executable->stream = number;
        executable->launching = true;
        executable->devices = 0;
    }
    pthread_mutex_unlock(&graph_list_lock);
    return executable;
}

static void leave(struct executable *executable, bool running)
{
    pthread_mutex_lock(&graph_list_lock);
    executable->launching = false;
    executable->running |= running;
    pthread_mutex_unlock(&graph_list_lock);
}

/* Charges what it needs and lets the driver take it: what that is, is known then. CUDA_SUCCESS: it may be launched. */
static CUresult prepare(struct executable *executable, CUstream stream, bool per_thread, bool always, bool *was_grown)
{
    bool grown = false;
    account_begin(&executable->span, ACCOUNT_ANY);
    CUresult error = admit_all(executable, &grown) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    if (error == CUDA_SUCCESS && (grown || always)) {
        error = upload(executable->handle, stream, per_thread);
        if (error == CUDA_SUCCESS && grown && overran(executable->devices))
            error = CUDA_ERROR_OUT_OF_MEMORY;
        else if (error != CUDA_ERROR_OUT_OF_MEMORY && !always)
            error = CUDA_SUCCESS;   /* the launch will say what is wrong */
    }
    *was_grown = grown;
    if (error == CUDA_SUCCESS)
        return error;
    uint32_t devices = executable->devices;
    struct account_span span = executable->span;
    leave(executable, false);
    settle(span, devices, false);
    relieve(devices);
    return error;
}

bool graphs_begin(struct graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread)
{
    *launch = (struct graph_launch){enter(exec, stream, per_thread), stream, per_thread, false};
    return launch->executable == NULL || prepare(launch->executable, stream, per_thread, false, &launch->grown) == CUDA_SUCCESS;
}

CUresult graphs_upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct executable *executable = enter(exec, stream, per_thread);
    bool grown;

    if (executable == NULL)
        return per_thread ? DRIVER(cuGraphUpload_ptsz, exec, stream) : DRIVER(cuGraphUpload, exec, stream);
    CUresult error = prepare(executable, stream, per_thread, true, &grown);
    if (error == CUDA_SUCCESS) {
        uint32_t devices = executable->devices;
        struct account_span span = executable->span;
        leave(executable, false);
        settle(span, devices, true);
    }
    return error;
}

/* ---- after a launch ---- */

static CUevent make_event(CUcontext context)
{
    CUevent event = NULL;
    CUcontext popped;

    if (DRIVER(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
        return NULL;
    if (DRIVER(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    DRIVER(cuCtxPopCurrent_v2, &popped);
    return event;
}

/* An event belongs to a context, and so does a stream. */
static CUevent event_in(struct executable *executable, CUcontext context)
{
    CUevent unused = NULL;

    if (executable->event != NULL && executable->context == context)
        return executable->event;
    CUevent event = make_event(context);
    pthread_mutex_lock(&graph_list_lock);
    unused = executable->event;
    executable->event = event;
    executable->context = context;
    pthread_mutex_unlock(&graph_list_lock);
    if (unused != NULL)
        DRIVER(cuEventDestroy_v2, unused);
    return event;
}

/* False: nobody will know when it is done; it counts as done. */
static bool mark(const struct graph_launch *launch)
{
    CUstreamCaptureMode mode = reclaim_begin();
    struct place place;
    CUevent event = contexts_place(launch->stream, &place) ? event_in(launch->executable, place.context) : NULL;
    bool marked = event != NULL && (launch->per_thread ? DRIVER(cuEventRecord_ptsz, event, launch->stream)
                                                       : DRIVER(cuEventRecord, event, launch->stream)) == CUDA_SUCCESS;

    reclaim_end(mode);
    return marked;
}

static void free_foreign(const struct graph_memory *memory)
{
    for (size_t i = 0; i < memory->foreign_count; i++) {
        struct uncharging uncharging;
        uncharge_begin(&uncharging, &charged_pointers, memory->ranges[memory->range_count + i].address);
        uncharge_end(&uncharging, CUDA_SUCCESS);
    }
}

static void record_left(const struct graph_memory *memory)
{
    for (size_t i = 0; i < memory->range_count; i++) {
        const struct graph_range *range = &memory->ranges[i];
        unsigned index;
        if (range->left == 0 || account_verdict(range->device, &index) != VERDICT_COUNT)
            continue;
        if (charge_record(&charged_pointers, range->address, (struct charge){range->left, NULL, index, CHARGE_GRAPH}))
            graph_list_left(index, range->left);
    }
}

CUresult graphs_end(struct graph_launch *launch, CUresult error)
{
    struct executable *executable = launch->executable;
    bool running = false;

    if (executable == NULL)
        return error;
    if (error == CUDA_SUCCESS) {
        running = mark(launch);
        free_foreign(executable->memory);
        record_left(executable->memory);
    }
    uint32_t devices = executable->devices;
    struct account_span span = executable->span;
    leave(executable, running);
    settle(span, devices, launch->grown);
    return error;
}

void graphs_forget(void)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        asked[i] = 0;
    graph_list_forget();
}
