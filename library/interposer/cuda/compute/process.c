/* The limits and the limiters, see process.h. */
#include "process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "captures.h"
#include "in_flight.h"
#include "interposer/cuda/hooks.h"
#include "launch.h"
#include "thread.h"

_Atomic bool compute_limited = true;
_Atomic uint64_t compute_generation = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct limiter *_Atomic compute_limiters[LIMITS_MAX_DEVICES];
static _Atomic bool begun;

/* What of a limiter could not be had yet, or can become another: the helper looks again. */
enum { ANSWERS_AWAITED = 40 };
static const uint64_t again_ns = UINT64_C(250000000);
static struct whole {
    CUdevice device;
    bool answered;
    unsigned asked;
    uint64_t looked_ns;
} wholes[LIMITS_MAX_DEVICES];

static void make_whole(struct limiter *limiter, int index, uint64_t now_ns);

/* ---- the helper ---- */

static uint64_t tick(uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < LIMITS_MAX_DEVICES && !vcuda_leaving(); i++) {
        struct limiter *limiter = atomic_load_explicit(&compute_limiters[i], memory_order_acquire);
        if (limiter != NULL)
            make_whole(limiter, i, now_ns);
        uint64_t wanted = limiter == NULL ? UINT64_MAX : limiter_tick(limiter);
        next = wanted < next ? wanted : next;
    }
    return next;
}

void compute_wake(void)
{
    vcuda_helper_add(tick);
    vcuda_helper_wake(tick);
}

/* ---- limits ---- */

static bool is_limited(const struct limits_device *device)
{
    return device != NULL && device->cores > 0 && device->cores < LIMITS_NO_CORES;
}

static void follow(const struct limits_view *view)
{
    bool any = false;
    for (uint32_t i = 0; i < view->device_count; i++) {
        const struct limits_device *device = &view->devices[i];
        struct limiter *limiter = atomic_load_explicit(&compute_limiters[i], memory_order_acquire);
        any = any || is_limited(device);
        if (limiter != NULL)
            limiter_set(limiter, is_limited(device) ? device->cores : LIMITS_NO_CORES, device->soft_cores);
    }
    atomic_fetch_add(&compute_generation, 1);
    atomic_store(&compute_limited, any);
}

/* In a forked child: the parent's devices are not there. */
static void forget(void)
{
    pthread_mutex_init(&lock, NULL);
    thread_forget();
    captures_forget();
    in_flight_forget();
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&compute_limiters[i], NULL);
    contexts_forget();
    atomic_store(&begun, false);
    atomic_fetch_add(&compute_generation, 1);
    atomic_store(&compute_limited, true);
}

bool compute_begin(void)
{
    if (!atomic_load_explicit(&begun, memory_order_acquire)) {
        vcuda_on_fork(forget);
        vcuda_on_limits_change(follow);
        context_on_end(contexts_end);
        follow(vcuda_limits());
        atomic_store_explicit(&begun, true, memory_order_release);
    }
    return atomic_load(&compute_limited);
}

/* ---- limiters ---- */

static bool mps_is_there(void)
{
    char path[512];
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%s/control", directory != NULL ? directory : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

/* Older drivers do not tell what is asked here. Another error may pass. */
static bool is_answer(CUresult error)
{
    return error == CUDA_SUCCESS || error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_NOT_SUPPORTED || error == CUDA_ERROR_NOT_FOUND;
}

/* Under MPS processes share the GPU at the same time. */
static bool ask_divided(CUdevice device, bool *divided)
{
    int mps = 0;
    CUresult error = DRIVER(cuDeviceGetAttribute, &mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
    *divided = error == CUDA_SUCCESS ? mps == 0 : !mps_is_there();
    return is_answer(error);
}

/* A third of the multiprocessors: collectives take 20 to 40 blocks, and leave the others to the kernels beside them. */
static bool ask_few_blocks(CUdevice device, uint32_t *few)
{
    int count = 0;
    CUresult error = DRIVER(cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    *few = error == CUDA_SUCCESS && count > 0 ? (uint32_t)count / 3 : 0;
    return is_answer(error);
}

static void raise_high(_Atomic uint32_t *high, uint32_t least)
{
    uint32_t seen = atomic_load(high);
    while (seen < least && !atomic_compare_exchange_weak(high, &seen, least))
        ;
}

/* The container's row, where it is not mapped: the process may have had no descriptor, or no room, until now. */
static void map_row(struct limiter *limiter, int index)
{
    char path[VCUDA_PATH], reason[NEIGHBOURS_REASON];
    const struct limits_device *limits = vcuda_device(index);
    if (limits == NULL || limits->uuid[0] == '\0' || limiter->presence.row != NULL || !vcuda_activity_row(path, limits->uuid))
        return;
    limiter->presence.row = neighbours_map_own(path, reason);
    if (limiter->presence.row != NULL)
        limiter_set(limiter, limits->cores, limits->soft_cores);
    else
        vcuda_warn(TOPIC_ACTIVITY, "%s: %s: other containers do not see this process's turns on the GPU, and it pays for those of its own siblings", path,
                   reason);
}

/* This process's slot is another one where it had to claim again. */
static void be_present(struct limiter *limiter, int index)
{
    int slot = vcuda_slot_number();
    map_row(limiter, index);
    struct activity_row *row = limiter->presence.row;
    struct activity_slot *own = row == NULL || slot < 0 ? NULL : &row->slots[slot];
    if (own == limiter->presence.own)
        return;
    presence_busy(own, 0, 0);
    if (own != NULL)
        raise_high(&row->slot_high, (uint32_t)slot + 1);
    limiter->presence.own = own;
}

static void find_neighbours(struct limiter *limiter, const struct limits_view *view, int index)
{
    char path[VCUDA_PATH];
    const char *uuid = view->devices[index].uuid;
    if (uuid[0] != '\0' && vcuda_activity_directory(path, uuid))
        snprintf(limiter->neighbours.directory, sizeof limiter->neighbours.directory, "%s", path);
    memcpy(limiter->neighbours.grant, view->grant, sizeof limiter->neighbours.grant);
}

/* Some drivers answer at a later time, or never: it is asked for ten seconds. */
static void ask_device(struct limiter *limiter, struct whole *whole)
{
    bool divided;
    uint32_t few;
    if (whole->answered || whole->asked++ >= ANSWERS_AWAITED)
        return;
    bool answered = ask_divided(whole->device, &divided);
    answered = ask_few_blocks(whole->device, &few) && answered;
    limiter->divided = divided;
    limiter->estimates->few_blocks = few;
    whole->answered = answered;
}

static void follow_slot(struct limiter *limiter, int index)
{
    struct region *region = vcuda_region();
    struct region_use *own = &vcuda_slot()->use[index];
    if (region != NULL && limiter->budget.region != region)
        limiter->budget.region = region;
    if (limiter->budget.own != own)
        limiter->budget.own = own;
}

static void make_whole(struct limiter *limiter, int index, uint64_t now_ns)
{
    struct whole *whole = &wholes[index];
    if (now_ns - whole->looked_ns < again_ns)
        return;
    whole->looked_ns = now_ns;
    limiter->presence.ahead_ns = vcuda_ahead();
    follow_slot(limiter, index);
    be_present(limiter, index);
    ask_device(limiter, whole);
}

static struct limiter *make_limiter(int index, bool divided, uint32_t few)
{
    struct region *region = vcuda_region();
    const struct limits_view *view = vcuda_limits();
    struct limiter *limiter = region == NULL ? NULL : calloc(1, sizeof *limiter);
    struct estimates *estimates = limiter == NULL ? NULL : calloc(1, sizeof *estimates);
    if (estimates == NULL) {
        free(limiter);
        return NULL;
    }
    struct region_slot *slot = vcuda_slot();
    limiter_init(limiter, &compute_driver, estimates, (struct budget){.region = region, .own = &slot->use[index], .device = (unsigned)index});
    limiter->divided = divided;
    limiter->presence.ahead_ns = vcuda_ahead();
    estimates->few_blocks = few;
    find_neighbours(limiter, view, index);
    be_present(limiter, index);
    limiter_set(limiter, view->devices[index].cores, view->devices[index].soft_cores);
    return limiter;
}

/* The driver is asked before the lock is taken. */
static struct limiter *make_once(int index, CUdevice device)
{
    bool divided;
    uint32_t few;
    bool answered = ask_divided(device, &divided);
    answered = ask_few_blocks(device, &few) && answered;
    pthread_mutex_lock(&lock);
    struct limiter *limiter = atomic_load_explicit(&compute_limiters[index], memory_order_acquire);
    bool made = limiter == NULL && (limiter = make_limiter(index, divided, few)) != NULL;
    if (made)
        wholes[index] = (struct whole){.device = device, .answered = answered, .looked_ns = vcuda_now_ns()};
    atomic_store_explicit(&compute_limiters[index], limiter, memory_order_release);
    pthread_mutex_unlock(&lock);
    if (made)
        compute_wake();
    return limiter;
}

struct limiter *compute_limiter(CUdevice device, bool *known)
{
    int index = device_index(device);
    *known = index != VCUDA_UNKNOWN;
    if (!is_limited(vcuda_device(index)))
        return NULL;
    struct limiter *limiter = atomic_load_explicit(&compute_limiters[index], memory_order_acquire);
    if (limiter == NULL)
        limiter = make_once(index, device);
    *known = limiter != NULL;
    return limiter;
}

void compute_forget(CUgraphExec graph)
{
    struct launch_key key = launch_key(graph, 0, 0, 0, 0, 0, 0);
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        struct limiter *limiter = atomic_load_explicit(&compute_limiters[i], memory_order_acquire);
        if (limiter != NULL)
            estimates_forget(limiter->estimates, &key);
    }
}
