/*
 * Launches under a limit, in the ways that are hard: one way for each first argument. Linked against nothing but libcuda.so.1; on the emulated driver.
 * Out: one line of JSON. A call of CUDA that fails unexpectedly ends it with status 1 and a sentence on stderr.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

#define MS UINT64_C(1000000)
enum { PER_THREAD = 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */ };

static const char kernels[] = MODULE_HEAD ".visible .entry work(.param .u64 ns)\n{\n// vcuda-emulator: ns = 1 * param 0 wide\nret;\n}\n";

static CUcontext primary;
static CUfunction work;
static _Atomic bool over;
static _Atomic uint64_t done;

static void pause_ms(unsigned ms)
{
    struct timespec span = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

static uint64_t violations(void)
{
    uint64_t (*count)(void);
    void *driver = dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_NOLOAD);
    *(void **)&count = driver == NULL ? NULL : dlsym(driver, "vcuda_emulator_capture_violations");
    if (count == NULL) {
        fprintf(stderr, "launching: this is not the emulated driver\n");
        exit(1);
    }
    return count();
}

static void begin(void)
{
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(cuCtxSetCurrent(primary));
    work = load_kernel(kernels, "work");
}

static CUresult launch(CUfunction function, unsigned grid, uint64_t ns, CUstream stream)
{
    void *parameters[] = {&ns};
    return cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

/* ---- the share that some way of launching gets: kernels of a millisecond, four at a time, waited for ---- */

typedef CUresult one_launch(CUstream stream);
typedef CUresult one_wait(CUstream stream);

struct way {
    CUstream stream;
    one_launch *launch;
    one_wait *wait;
};

static void *launch_often(void *argument)
{
    const struct way *way = argument;
    CHECK(cuCtxSetCurrent(primary));
    while (!atomic_load(&over)) {
        for (int i = 0; i < 4; i++)
            CHECK(way->launch(way->stream));
        CHECK(way->wait(way->stream));
        atomic_fetch_add(&done, 4);
    }
    return NULL;
}

static void run_for(struct way *ways, unsigned count, unsigned ms)
{
    pthread_t threads[64];
    for (unsigned i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, launch_often, &ways[i]);
    pause_ms(ms);
    atomic_store(&over, true);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, false);
}

/*
 * Before and after the measured span nothing is queued, but the container may owe up to all that was under way at once: new kernels go before it is
 * known what they cost, and are paid for later. The share is off by that over the span, however quiet the machine is: of a millisecond each, four for
 * a thread, 1.6 points for 16 threads in four seconds, and 3.2 in two.
 */
static double share_of(struct way *ways, unsigned count, double seconds)
{
    run_for(ways, count, 400);
    uint64_t from = now_ns(), before = atomic_load(&done);
    run_for(ways, count, (unsigned)(seconds * 1000));
    return 100.0 * (double)((atomic_load(&done) - before) * MS) / (double)(now_ns() - from);
}

static CUresult launch_plain(CUstream stream)
{
    return launch(work, 8, MS, stream);
}

static CUresult launch_ex(CUstream stream)
{
    uint64_t ns = MS;
    void *parameters[] = {&ns};
    CUlaunchConfig config = {.gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    return cuLaunchKernelEx(&config, work, parameters, NULL);
}

static CUresult launch_cooperative(CUstream stream)
{
    uint64_t ns = MS;
    void *parameters[] = {&ns};
    return cuLaunchCooperativeKernel(work, 8, 1, 1, 256, 1, 1, 0, stream, parameters);
}

static CUresult (*per_thread_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
static CUresult (*per_thread_wait)(CUstream);

static CUresult launch_per_thread(CUstream stream)
{
    uint64_t ns = MS;
    void *parameters[] = {&ns};
    return per_thread_launch(work, 8, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

static CUresult launch_with_failures(CUstream stream)
{
    uint64_t ns = MS;
    void *parameters[] = {&ns};
    for (int i = 0; i < 20; i++) {
        if (cuLaunchKernel(work, 8, 1, 1, 4096, 1, 1, 0, stream, parameters, NULL) != CUDA_ERROR_INVALID_VALUE)
            return CUDA_ERROR_UNKNOWN;
    }
    return launch_plain(stream);
}

static CUstream new_stream(void)
{
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static double share_with(one_launch *launcher, CUstream stream)
{
    struct way way = {stream, launcher, cuStreamSynchronize};
    return share_of(&way, 1, 1.5);
}

static void ways(void)
{
    struct way per_thread[2] = {{NULL, launch_per_thread, NULL}, {NULL, launch_per_thread, NULL}};
    CUdriverProcAddressQueryResult status;
    begin();
    CHECK(cuGetProcAddress_v2("cuLaunchKernel", (void **)&per_thread_launch, 12000, PER_THREAD, &status));
    CHECK(cuGetProcAddress_v2("cuStreamSynchronize", (void **)&per_thread_wait, 12000, PER_THREAD, &status));
    per_thread[0].wait = per_thread[1].wait = per_thread_wait;
    printf("{\"default\": %.2f, ", share_with(launch_plain, NULL));
    printf("\"ex\": %.2f, ", share_with(launch_ex, new_stream()));
    printf("\"cooperative\": %.2f, ", share_with(launch_cooperative, new_stream()));
    printf("\"per_thread\": %.2f, ", share_of(per_thread, 2, 1.5));
    printf("\"with_failures\": %.2f}\n", share_with(launch_with_failures, new_stream()));
}

/* ---- many threads, which come and go ---- */

static void *few_launches(void *unused)
{
    (void)unused;
    CHECK(cuCtxSetCurrent(primary));
    CUstream stream = new_stream();
    for (int i = 0; i < 3; i++)
        CHECK(launch(work, 4, MS / 4, stream));
    CHECK(cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads(void)
{
    struct way all[16];
    pthread_t passing;
    begin();
    for (int i = 0; i < 200; i++) {
        pthread_create(&passing, NULL, few_launches, NULL);
        pthread_join(passing, NULL);
    }
    for (int i = 0; i < 16; i++)
        all[i] = (struct way){new_stream(), launch_plain, cuStreamSynchronize};
    printf("{\"share\": %.2f}\n", share_of(all, 16, 4.0));
}

/* ---- capture ---- */

static size_t capture(CUstream stream, CUstreamCaptureMode mode, CUstream beside)
{
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    CHECK(cuStreamBeginCapture_v2(stream, mode));
    for (int i = 0; i < 30; i++) {
        CHECK(launch(work, 16, MS / 10, stream));
        if (beside != NULL && i % 3 == 0)
            CHECK(launch(work, 32, MS / 10, beside));
        if (i % 10 == 0)
            pause_ms(4);
    }
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    return nodes;
}

/* A call that waits is forbidden to all threads while one captures in global mode. The limit keeps it from running ahead. */
static CUresult wait_for_nothing(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static void captures(void)
{
    struct way way = {NULL, launch_plain, wait_for_nothing};
    size_t nodes = 0;
    pthread_t other;
    begin();
    CUstream stream = new_stream(), beside = new_stream();
    way.stream = new_stream();
    pthread_create(&other, NULL, launch_often, &way);
    pause_ms(100);
    for (int mode = 0; mode < 3; mode++) {
        for (int i = 0; i < 8; i++)
            nodes += capture(stream, (CUstreamCaptureMode)mode, i % 2 == 0 ? beside : NULL);
    }
    atomic_store(&over, true);
    pthread_join(other, NULL);
    printf("{\"nodes\": %zu, \"violations\": %llu}\n", nodes, (unsigned long long)violations());
}

/* ---- contexts and streams that end while they are at work ---- */

static void ends(void)
{
    CUcontext context;
    begin();
    for (int i = 0; i < 60; i++) {
        CHECK(cuCtxCreate_v2(&context, 0, 0));
        CUfunction function = load_kernel(kernels, "work");
        CUstream stream = new_stream();
        for (int k = 0; k < 5; k++)
            CHECK(launch(function, 4, MS / 5, i % 3 == 0 ? NULL : stream));
        if (i % 2 == 0)
            CHECK(cuStreamDestroy_v2(stream));
        CHECK(cuCtxDestroy_v2(context));
        CHECK(cuCtxSetCurrent(primary));
        CHECK(launch(work, 4, MS / 5, NULL));
    }
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 5; k++)
            CHECK(launch(work, 4, MS / 5, NULL));
        CHECK(cuDevicePrimaryCtxReset_v2(0));
        CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
        CHECK(cuCtxSetCurrent(primary));
        work = load_kernel(kernels, "work");
    }
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(cuDevicePrimaryCtxRelease_v2(0));
    printf("{\"share\": %.2f}\n", share_with(launch_plain, new_stream()));
}

/* ---- launches that nothing can measure, because the stream waits for what the program does after them ---- */

static void wait_for_program(void *semaphore)
{
    while (sem_wait(semaphore) != 0)
        ;
}

static void stuck(void)
{
    sem_t semaphore;
    uint64_t longest = 0, begun;
    begin();
    sem_init(&semaphore, 0, 0);
    CUstream stream = new_stream();
    CHECK(cuLaunchHostFunc(stream, wait_for_program, &semaphore));
    for (unsigned i = 1; i <= 6; i++) {
        begun = now_ns();
        CHECK(launch(work, i, MS, stream));
        longest = now_ns() - begun > longest ? now_ns() - begun : longest;
    }
    sem_post(&semaphore);
    CHECK(cuStreamSynchronize(stream));
    printf("{\"longest_ms\": %.1f}\n", (double)longest / 1e6);
}

/* ---- fork ---- */

static bool child_is_limited(void)
{
    begin();
    return share_with(launch_plain, new_stream()) < 40;
}

static bool ended_well(pid_t child)
{
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0;
}

static void forks(void)
{
    int version;
    CHECK(cuDriverGetVersion(&version));
    pid_t before = fork();
    if (before == 0)
        _exit(!child_is_limited());
    bool first = ended_well(before);
    begin();
    CUstream stream = new_stream();
    for (int i = 0; i < 10; i++)
        CHECK(launch(work, 8, MS, stream));
    pid_t after = fork();
    if (after == 0)
        _exit(launch(work, 8, MS, stream) == CUDA_SUCCESS);
    bool second = ended_well(after);
    printf("{\"before_init\": %s, \"after_init\": %s, \"parent\": %.2f}\n", first ? "true" : "false", second ? "true" : "false",
           share_with(launch_plain, stream));
}

/* ---- a process that ends in the middle of it all ---- */

static void exits(void)
{
    struct way way = {NULL, launch_plain, cuStreamSynchronize};
    pthread_t other;
    begin();
    way.stream = new_stream();
    pthread_create(&other, NULL, launch_often, &way);
    pause_ms(300);
    printf("{\"at_ns\": %llu}\n", (unsigned long long)now_ns());
    fflush(stdout);
    exit(0);
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"ways", ways}, {"threads", threads}, {"captures", captures}, {"ends", ends}, {"stuck", stuck}, {"forks", forks}, {"exits", exits},
    };
    for (unsigned i = 0; count == 2 && i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(arguments[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
