/*
 * Threads that use the emulated driver at once: each with a stream of its own and one that all share, events, host functions, a capture of its own.
 * In: how many threads and rounds. Out: "all done" once every thread's host functions ran and nothing is left to do; else what failed (on stderr where a call did), and 1.
 */
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

static const char text[] = ".version 7.0\n.target sm_50\n.visible .entry work(.param .u64 n)\n{\n// vcuda-emulator: ns = 1 * param 0\nret;\n}\n";
static CUcontext context;
static CUfunction function;
static CUstream shared;
static long rounds;
static _Atomic long called;

static void note(void *unused)
{
    (void)unused;
    atomic_fetch_add(&called, 1);
}

static void launch(CUstream stream, uint64_t ns)
{
    void *parameters[] = {&ns};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void once(CUstream stream, CUevent event, long round)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUgraph graph;
    CUgraphExec exec;
    launch(stream, 1000);
    launch(shared, 500);
    CHECK(cuEventRecord(event, shared));
    CHECK(cuStreamWaitEvent(stream, event, 0));
    CHECK(cuLaunchHostFunc(round % 2 == 0 ? stream : shared, note, NULL));
    launch(stream, 1000);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(stream, 2000);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuEventSynchronize(event));
    CHECK(cuThreadExchangeStreamCaptureMode(&mode));
}

static void *work(void *unused)
{
    CUstream stream;
    CUevent event;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, 0));
    for (long i = 0; i < rounds; i++)
        once(stream, event, i);
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuStreamDestroy_v2(stream));
    return unused;
}

int main(int count, char **words)
{
    int wanted = count == 3 ? atoi(words[1]) : 0;
    rounds = count == 3 ? strtol(words[2], NULL, 10) : 0;
    if (wanted < 1 || wanted > MOST_THREADS)
        return 2;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    function = load_kernel(text, "work");
    CHECK(cuStreamCreate(&shared, CU_STREAM_NON_BLOCKING));
    in_threads(wanted, work);
    CHECK(cuCtxSynchronize());
    CHECK(cuDevicePrimaryCtxRelease_v2(0));
    puts(atomic_load(&called) == wanted * rounds ? "all done" : "host functions were lost");
    return 0;
}
