/*
 * The launches: each asks the limiter where something is limited, and is a jump into the driver where nothing is.
 *
 * What is launched is a handle (never looked into: a CUfunction may be a CUkernel) with its grid and block; a graph is one launch.
 */
#include "stream_queue.h"
#include "launch.h"
#include "interposer/cuda/memory/graphs.h"

enum { MOST_DEVICES = 64 };

/* Apart, so that the way without a limit needs no stack. */
#define KERNEL(symbol, wanted_stream)                                                                                  \
    static __attribute__((noinline)) CUresult limited_##symbol(                                                        \
        CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,      \
        unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra)                            \
    {                                                                                                                  \
        LAUNCH_PASS(launch_key(function, gx, gy, gz, bx, by, bz), wanted_stream, symbol, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) \
    }                                                                                                                  \
    CUresult symbol(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,           \
                    unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra) \
    {                                                                                                                  \
        if (compute_free())                                                                                            \
            return real.symbol(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);                       \
        return limited_##symbol(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);                      \
    }

KERNEL(cuLaunchKernel, stream)
KERNEL(cuLaunchKernel_ptsz, own_stream(stream))

static bool is_together(const CUlaunchAttribute *attribute)
{
    return (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute->value.cooperative != 0) ||
           (attribute->id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN && attribute->value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
}

static struct launch_key config_key(const CUlaunchConfig *config, CUfunction function)
{
    struct launch_key key = launch_key(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                                       config->blockDimZ);
    for (unsigned i = 0; config->attrs != NULL && i < config->numAttrs; i++)
        key.dimensions[2] |= is_together(&config->attrs[i]) ? LAUNCH_TOGETHER : 0;
    return key;
}

#define KERNEL_EX(symbol, wanted_stream)                                                                               \
    static __attribute__((noinline)) CUresult limited_##symbol(const CUlaunchConfig *config, CUfunction function,      \
                                                               void **params, void **extra)                            \
    {                                                                                                                  \
        LAUNCH_PASS(config_key(config, function), wanted_stream, symbol, config, function, params, extra)              \
    }                                                                                                                  \
    CUresult symbol(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)                    \
    {                                                                                                                  \
        if (compute_free() || config == NULL)                                                                          \
            return real.symbol(config, function, params, extra);                                                       \
        return limited_##symbol(config, function, params, extra);                                                      \
    }

KERNEL_EX(cuLaunchKernelEx, config->hStream)
KERNEL_EX(cuLaunchKernelEx_ptsz, own_stream(config->hStream))

static struct launch_key cooperative_key(CUfunction function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz)
{
    struct launch_key key = launch_key(function, gx, gy, gz, bx, by, bz);
    key.dimensions[2] |= LAUNCH_TOGETHER;
    return key;
}

#define COOPERATIVE(symbol, wanted_stream)                                                                             \
    CUresult symbol(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,           \
                    unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params)             \
    {                                                                                                                  \
        if (compute_free())                                                                                            \
            return real.symbol(function, gx, gy, gz, bx, by, bz, shared, stream, params);                              \
        LAUNCH_PASS(cooperative_key(function, gx, gy, gz, bx, by, bz), wanted_stream, symbol, function, gx, gy, gz, bx, by, bz, shared, stream, params) \
    }

COOPERATIVE(cuLaunchCooperativeKernel, stream)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, own_stream(stream))

/* Graphs that take memory are charged for it first. */
#define GRAPH(symbol, wanted_stream, per_thread)                                                                       \
    static CUresult launched_##symbol(CUgraphExec graph, CUstream stream)                                              \
    {                                                                                                                  \
        if (compute_free())                                                                                            \
            return real.symbol(graph, stream);                                                                         \
        LAUNCH_PASS(launch_key(graph, 0, 0, 0, 0, 0, 0), wanted_stream, symbol, graph, stream)                                       \
    }                                                                                                                  \
    CUresult symbol(CUgraphExec graph, CUstream stream)                                                                \
    {                                                                                                                  \
        struct graph_launch launch;                                                                                    \
        if (!graphs_any())                                                                                             \
            return launched_##symbol(graph, stream);                                                                   \
        if (!graphs_begin(&launch, graph, stream, per_thread))                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        return graphs_end(&launch, launched_##symbol(graph, stream));                                                  \
    }

GRAPH(cuGraphLaunch, stream, false)
GRAPH(cuGraphLaunch_ptsz, own_stream(stream), true)

/* The handle may come back for another graph. One that is updated keeps its estimate: most updates change no cost, and measurements follow. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (!compute_free() && !hook_nested())
        compute_forget(exec);
    if (graphs_any() && !hook_nested())
        graphs_gone(exec);
    return DRIVER(cuGraphExecDestroy, exec);
}

/* ---- launches from before CUDA 4: the block is set elsewhere, the stream is the legacy one ---- */

CUresult cuLaunch(CUfunction function)
{
    if (compute_free())
        return real.cuLaunch(function);
    LAUNCH_PASS(launch_key(function, 1, 1, 1, 0, 0, 0), NULL, cuLaunch, function)
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    if (compute_free())
        return real.cuLaunchGrid(function, width, height);
    LAUNCH_PASS(launch_key(function, (uint32_t)width, (uint32_t)height, 1, 0, 0, 0), NULL, cuLaunchGrid, function, width, height)
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    if (compute_free())
        return real.cuLaunchGridAsync(function, width, height, stream);
    LAUNCH_PASS(launch_key(function, (uint32_t)width, (uint32_t)height, 1, 0, 0, 0), stream, cuLaunchGridAsync, function, width, height, stream)
}

/* ---- one kernel on several devices: all of them let it go, one after the other ---- */

/* Waiting for one device pauses the queues of the others, which takes their batches away: those are let in again, a few times at most. */
enum { ROUNDS = 4 };

struct admission {
    bool entered;
    struct launch_ticket ticket;
};

static bool stands(const struct admission *admission)
{
    return admission->entered && admission->ticket.queue->open != NULL;
}

static void enter_one(struct admission *admission, const CUDA_LAUNCH_PARAMS *launch)
{
    struct launch_key key = cooperative_key(launch->function, launch->gridDimX, launch->gridDimY, launch->gridDimZ, launch->blockDimX,
                                            launch->blockDimY, launch->blockDimZ);
    admission->entered = compute_enter(&admission->ticket, &key, launch->hStream);
}

static void enter_all(struct admission *admissions, const CUDA_LAUNCH_PARAMS *launches, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        enter_one(&admissions[i], &launches[i]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < count; i++) {
            if (admissions[i].entered && !stands(&admissions[i]))
                enter_one(&admissions[i], &launches[i]);
        }
    }
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    struct admission admissions[MOST_DEVICES];
    if (compute_free() || launches == NULL || count > MOST_DEVICES)
        return real.cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
    enter_all(admissions, launches, count);
    CUresult error = DRIVER(cuLaunchCooperativeKernelMultiDevice, launches, count, flags);
    for (unsigned i = 0; i < count; i++) {
        if (stands(&admissions[i]))
            compute_leave(&admissions[i].ticket, error);
    }
    return error;
}
