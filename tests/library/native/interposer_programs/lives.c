/*
 * Contexts, streams and captures that come and go under a limit: one way for each first argument. Linked against nothing but libcuda.so.1; on the emulated
 * driver, whose counters it reads. Out: one line of JSON. A call of CUDA that fails unexpectedly ends it with status 1 and a sentence on stderr.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "programs/program.h"

#define MS UINT64_C(1000000)

static const char kernels[] = MODULE_HEAD ".visible .entry work(.param .u64 ns)\n{\n// vcuda-emulator: ns = 1 * param 0 wide\nret;\n}\n";

static CUcontext primary;
static CUfunction work;

static void pause_ms(unsigned ms)
{
    struct timespec span = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

static void *of_emulator(const char *symbol)
{
    void *driver = dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = driver == NULL ? NULL : dlsym(driver, symbol);
    if (found == NULL) {
        fprintf(stderr, "lives: this is not the emulated driver, or one without %s\n", symbol);
        exit(1);
    }
    return found;
}

static unsigned long long counted(const char *counter)
{
    uint64_t (*count)(void);
    *(void **)&count = of_emulator(counter);
    return count();
}

static unsigned long long calls(const char *symbol)
{
    uint64_t (*count)(const char *);
    *(void **)&count = of_emulator("vcuda_emulator_calls");
    return count(symbol);
}

static void begin(void)
{
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(cuCtxSetCurrent(primary));
    work = load_kernel(kernels, "work");
}

static CUresult launch(CUfunction function, uint64_t ns, CUstream stream)
{
    void *parameters[] = {&ns};
    return cuLaunchKernel(function, 8, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

static CUstream new_stream(void)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Kernels of a millisecond for so long; how much of the time they were on the GPU, in percent. */
static double share_of(CUfunction function, const CUstream *streams, unsigned count, unsigned ms)
{
    uint64_t from = now_ns(), launched = 0;
    while (now_ns() < from + ms * MS) {
        CHECK(launch(function, MS, streams[launched++ % count]));
        if (launched % 8 == 0)
            CHECK(cuStreamSynchronize(streams[0]));
    }
    for (unsigned i = 0; i < count; i++)
        CHECK(cuStreamSynchronize(streams[i]));
    return 100.0 * (double)(launched * MS) / (double)(now_ns() - from);
}

/* ---- green contexts ---- */

static CUgreenCtx make_green(CUcontext *context)
{
    CUgreenCtx green;
    CHECK(cuGreenCtxCreate(&green, NULL, 0, 1));
    CHECK(cuCtxFromGreenCtx(context, green));
    return green;
}

/* Its streams and its default one, while it is current here all the time. */
static void green(void)
{
    CUcontext context, before;
    CUstream streams[3] = {NULL};
    begin();
    CUgreenCtx made = make_green(&context);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuGreenCtxStreamCreate(&streams[1], made, CU_STREAM_NON_BLOCKING, 0));
    streams[2] = new_stream();
    share_of(work, streams, 3, 300);
    double share = share_of(work, streams, 3, 1500);
    CHECK(cuCtxPopCurrent_v2(&before));
    CHECK(cuGreenCtxDestroy(made));
    CHECK(cuCtxSetCurrent(primary));
    CUstream after = new_stream();
    printf("{\"share\": %.2f, \"after\": %.2f, \"violations\": %llu, \"stale\": %llu}\n", share, share_of(work, &after, 1, 500),
           counted("vcuda_emulator_green_violations"), counted("vcuda_emulator_stale_handles"));
}

/* And one that is not the last ends while a thread, that launched into a stream of it, waits for credit beside it. */
static void ended_beside(void)
{
    CUcontext context;
    CUstream stream, own = new_stream();
    CUgreenCtx made = make_green(&context);
    CHECK(cuGreenCtxStreamCreate(&stream, made, CU_STREAM_NON_BLOCKING, 0));
    for (int k = 0; k < 3; k++)
        CHECK(launch(work, MS / 50, stream));
    CHECK(cuGreenCtxDestroy(made));
    for (int k = 0; k < 60; k++)
        CHECK(launch(work, MS / 2, own));
    CHECK(cuStreamDestroy_v2(stream));
}

/* The green context is the last that holds the primary one, which is at work when it ends, and used in another thread's pause. */
static void last(void)
{
    CUcontext context;
    for (int i = 0; i < 25; i++) {
        begin();
        CUstream stream, own = new_stream();
        CUgreenCtx made = make_green(&context);
        CHECK(cuGreenCtxStreamCreate(&stream, made, CU_STREAM_NON_BLOCKING, 0));
        for (int k = 0; k < 6; k++)
            CHECK(launch(work, MS / 2, k % 2 == 0 ? stream : own));
        CHECK(cuDevicePrimaryCtxRelease_v2(0));
        CHECK(launch(work, MS / 2, stream));
        CHECK(cuGreenCtxDestroy(made));
    }
    begin();
    for (int i = 0; i < 5; i++)
        ended_beside();
    CUstream stream = new_stream();
    unsigned long long stale = counted("vcuda_emulator_stale_handles") - 5;    /* the streams that the program destroyed after their context */
    printf("{\"share\": %.2f, \"stale\": %llu}\n", share_of(work, &stream, 1, 1500), stale);
}

/* ---- contexts ---- */

/* One after the other, at the same address; launches of each are of unknown cost, once. */
static double share_in_turn(unsigned ms)
{
    uint64_t from = now_ns(), launched = 0;
    while (now_ns() < from + ms * MS) {
        CUcontext context;
        CHECK(cuCtxCreate_v2(&context, 0, 0));
        CUfunction function = load_kernel(kernels, "work");
        CUstream stream = new_stream();
        for (int i = 0; i < 20; i++, launched++)
            CHECK(launch(function, MS, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuCtxDetach(context));
    }
    return 100.0 * (double)(launched * MS) / (double)(now_ns() - from);
}

static void detached(void)
{
    CHECK(cuInit(0));
    double share = (share_in_turn(300), share_in_turn(2000));
    printf("{\"share\": %.2f, \"stale\": %llu}\n", share, counted("vcuda_emulator_stale_handles"));
}

/* What retaining and releasing by others leaves of the count of references: nothing of ours is in it. */
static void references(void)
{
    begin();
    CUstream stream = new_stream();
    unsigned long long before = calls("cuDevicePrimaryCtxRetain");
    for (int i = 0; i < 5; i++)
        CHECK(launch(work, MS, stream));
    CHECK(cuStreamSynchronize(stream));
    printf("{\"retained\": %llu}\n", calls("cuDevicePrimaryCtxRetain") - before);
}

/* ---- a stream handle that comes back on another device ---- */

static void handles(void)
{
    CUcontext other;
    begin();
    CUstream stream = new_stream();
    CHECK(launch(work, MS, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    CUfunction function = load_kernel(kernels, "work");
    CHECK(cuStreamDestroy_v2(stream));
    CUstream again = new_stream();
    CHECK(launch(function, MS, again));
    CHECK(cuStreamSynchronize(again));
    pause_ms(100);
    printf("{\"same\": %s}\n", again == stream ? "true" : "false");
}

/* The driver fails once to say where the stream belongs. */
static void failing(void)
{
    begin();
    CUstream stream = new_stream();
    share_of(work, &stream, 1, 300);
    printf("{\"share\": %.2f}\n", share_of(work, &stream, 1, 1500));
}

/* ---- captures that end with their stream, or with their context ---- */

static unsigned long long asked_by(CUstream stream)
{
    unsigned long long before = calls("cuStreamIsCapturing"), recorded = calls("cuEventRecord");
    for (int i = 0; i < 1000; i++)
        CHECK(launch(work, 1, stream));
    CHECK(cuStreamSynchronize(stream));
    /* Marks ask for themselves. */
    return calls("cuStreamIsCapturing") - before - (calls("cuEventRecord") - recorded);
}

static void captures(void)
{
    CUcontext context;
    CUgraph graph;
    begin();
    CUstream stream = new_stream(), captured = new_stream();
    CHECK(launch(work, 1, stream));
    CHECK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    unsigned long long during = asked_by(stream);
    CHECK(cuStreamDestroy_v2(captured));
    unsigned long long by_stream = asked_by(stream);
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuStreamBeginCapture_v2(new_stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuCtxDestroy_v2(context));
    CHECK(cuCtxSetCurrent(primary));
    unsigned long long by_context = asked_by(stream);
    CHECK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuStreamEndCapture_ptsz(NULL, &graph));
    printf("{\"during\": %llu, \"by_stream\": %llu, \"by_context\": %llu, \"by_end\": %llu}\n", during, by_stream, by_context, asked_by(stream));
}

/* ---- a thread that is cancelled where a launch of its is in our hands: at the process's first, and while it waits ---- */

static void *launch_cancelled(void *unused)
{
    (void)unused;
    CHECK(cuCtxSetCurrent(primary));
    CUstream stream = new_stream();
    pthread_cancel(pthread_self());
    CHECK(launch(work, MS, stream));
    pthread_testcancel();
    return NULL;
}

static void *launch_on(void *argument)
{
    CUstream stream = argument;
    CHECK(cuCtxSetCurrent(primary));
    for (;;) {
        for (int i = 0; i < 8; i++)
            CHECK(launch(work, MS / 4, stream));
        CHECK(launch(work, MS / 4, CU_STREAM_PER_THREAD));
        pthread_testcancel();
    }
    return NULL;
}

static void cancelled(void)
{
    pthread_t thread;
    begin();
    CUstream stream = new_stream(), others[4];
    pthread_create(&thread, NULL, launch_cancelled, NULL);
    pthread_join(thread, NULL);
    for (int i = 0; i < 4; i++)
        others[i] = new_stream();
    for (int i = 0; i < 40; i++) {
        pthread_create(&thread, NULL, launch_on, others[i % 4]);
        pause_ms((unsigned)i % 7 + 5);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    share_of(work, &stream, 1, 300);
    printf("{\"share\": %.2f}\n", share_of(work, &stream, 1, 1500));
}

/*
 * A full queue: a thread that launched into it waits for credit elsewhere and marks its end there, which takes as long as the queue is full. Who ends another
 * stream does not wait for that, who ends its context does.
 */
struct full {
    CUcontext context;
    CUfunction function;
    CUstream crowded, own;
    _Atomic bool primed, filled;
    _Atomic unsigned launched;
};

static void *fill(void *argument)
{
    struct full *full = argument;
    CHECK(cuCtxSetCurrent(full->context));
    for (int i = 0; i < 200; i++)
        CHECK(launch(full->function, 1000, full->crowded));
    CHECK(cuStreamSynchronize(full->crowded));
    while (!atomic_load(&full->primed))
        pause_ms(1);
    for (int i = 0; i < 1024; i++)
        CHECK(launch(full->function, i == 0 ? 2500 * MS : 1000, full->crowded));    /* it was never so long */
    atomic_store(&full->filled, true);
    return NULL;
}

static void *wait_beside(void *argument)
{
    struct full *full = argument;
    CHECK(cuCtxSetCurrent(full->context));
    for (int i = 0; i < 3; i++)
        CHECK(launch(full->function, 1000, full->crowded));
    CHECK(cuStreamSynchronize(full->crowded));
    pause_ms(100);
    CHECK(launch(full->function, 1000, full->crowded));
    CHECK(cuCtxSetCurrent(primary));
    pause_ms(100);                      /* the helper sees that what was before this launch is done: the stream is not behind */
    atomic_store(&full->primed, true);
    while (!atomic_load(&full->filled))
        pause_ms(1);
    for (int i = 0; i < 100; i++) {
        CHECK(launch(work, 1000, full->own));
        atomic_fetch_add(&full->launched, 1);
        pause_ms(2);
    }
    return NULL;
}

static void *end_context(void *context)
{
    CHECK(cuCtxDestroy_v2(context));
    return NULL;
}

static void crowded(void)
{
    struct full full = {NULL};
    pthread_t threads[3];
    begin();
    CUstream other = new_stream();
    full.own = new_stream();
    CHECK(cuCtxCreate_v2(&full.context, 0, 0));
    full.crowded = new_stream();
    full.function = load_kernel(kernels, "work");
    CHECK(cuCtxSetCurrent(primary));
    pthread_create(&threads[0], NULL, fill, &full);
    pthread_create(&threads[1], NULL, wait_beside, &full);
    while (!atomic_load(&full.filled))
        pause_ms(1);
    for (unsigned seen = 0; atomic_load(&full.launched) == 0 || atomic_load(&full.launched) != seen; pause_ms(100))
        seen = atomic_load(&full.launched);
    uint64_t begun = now_ns();
    CHECK(cuStreamDestroy_v2(other));
    double other_ms = (double)(now_ns() - begun) / 1e6;
    pthread_create(&threads[2], NULL, end_context, full.context);
    pause_ms(200);
    unsigned long long early = calls("cuCtxDestroy_v2");
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("{\"other_ms\": %.1f, \"early\": %llu, \"late\": %llu, \"stale\": %llu}\n", other_ms, early, calls("cuCtxDestroy_v2"),
           counted("vcuda_emulator_stale_handles"));
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"green", green}, {"last", last}, {"detached", detached}, {"references", references}, {"captures", captures},
        {"cancelled", cancelled}, {"crowded", crowded}, {"handles", handles}, {"failing", failing},
    };
    for (unsigned i = 0; count == 2 && i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(arguments[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
