/*
 * Streams that hold more than kernels of one shape, under a limit: `mixing KIND SECONDS`. Linked against nothing but libcuda.so.1; on the emulated driver.
 *
 *   copy, event, host   kernels of 400 us, eight before they are waited for; between two of them a copy from the host, a wait for an event of another
 *                       stream in which a host function of 200 us ran, or such a host function
 *   mixed               all of these in turns
 *   rectangle, value    the same kernels; between two of them a copy of a rectangle from the host, or a wait for a word that another stream writes
 *                       when the kernel has ended and, after that, such a host function
 *   shared              kernels of 400 us as above, while another thread puts such host functions into their stream, one in a millisecond
 *   grids               kernels of 20 us, each with a grid that none before it had, 64 before they are waited for
 *   fill, device, box   a kernel of 400 us and, while it runs, 64 fills, or copies on the device, or copies of rectangles and boxes there, of 4 KiB,
 *                       before they are waited for
 *
 *   persistent          kernels of 100 us, each waited for, beside one that does not end: `per_second`, how many in the last second
 *   captured            captures of kernels with all of that between them: `nodes` of the graphs, and `violations` of what a capture forbids
 *   bare                copies, waits, writes and host functions in a stream without kernels: `records`, the events that were recorded for it
 *   ways                the same of copies alone: from the `host`, to `another` GPU, and within the device by their pointers (`pointers`), beside a
 *                       capture (`captured`), between contexts (`contexts`), and behind one from the host in a `batch`
 *
 * Out: one line of JSON: else `share_percent`, the GPU time of the kernels, fills or copies on the device over the time in which they were done, after the first
 * second.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { BYTES = 4096, SIDE = 64, AHEAD = 8, SMALL_AHEAD = 64, LEAST_GRID = 264, KERNEL_NS = 400000, MEASURED = 8 };
enum between { NOTHING, COPY, EVENT, HOST, EVERYTHING, RECTANGLE, VALUE };
enum move { FILL, DEVICE, BOX, MOVES };

static const char *const betweens[] = {"nothing", "copy", "event", "host", "mixed", "rectangle", "value"};
static const char *const moves[] = {"fill", "device", "box"};

static const char kernels[] = WORK_MODULE_HEAD WORK_KERNEL("work", "wide") WORK_KERNEL("narrow", "narrow");

static CUfunction work;
static CUstream stream, side;
static CUevent event;
static CUdeviceptr target, source, word;
static char host[BYTES];
static const CUDA_MEMCPY2D from_host = {
    .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = SIDE, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = SIDE,
    .WidthInBytes = SIDE, .Height = SIDE,
};

static void sleep_a_little(void *unused)
{
    struct timespec span = {.tv_nsec = 200000};
    (void)unused;
    nanosleep(&span, NULL);
}

static void put_rectangle(void)
{
    CUDA_MEMCPY2D copy = from_host;
    copy.dstDevice = target;
    CHECK(cuMemcpy2DAsync_v2(&copy, stream));
}

static void put_value(void)
{
    static uint32_t last;
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(side, event, 0));
    CHECK(cuLaunchHostFunc(side, sleep_a_little, NULL));
    CHECK(cuStreamWriteValue32_v2(side, word, ++last, 0));
    CHECK(cuStreamWaitValue32_v2(stream, word, last, 0));
}

static void put(enum between between)
{
    if (between == RECTANGLE)
        put_rectangle();
    if (between == VALUE)
        put_value();
    if (between == COPY)
        CHECK(cuMemcpyHtoDAsync_v2(target, host, sizeof host, stream));
    if (between == HOST)
        CHECK(cuLaunchHostFunc(stream, sleep_a_little, NULL));
    if (between != EVENT)
        return;
    CHECK(cuLaunchHostFunc(side, sleep_a_little, NULL));
    CHECK(cuEventRecord(event, side));
    CHECK(cuStreamWaitEvent(stream, event, 0));
}

static _Atomic bool over;

static void *put_often(void *context)
{
    struct timespec span = {.tv_nsec = 1000000};
    CHECK(cuCtxSetCurrent(context));
    while (!atomic_load(&over)) {
        put(HOST);
        nanosleep(&span, NULL);
    }
    return NULL;
}

static void launch(unsigned grid, uint64_t ns)
{
    uint64_t rounds = ns / ROUND_NS;
    void *parameters[] = {&rounds};
    CHECK(cuLaunchKernel(work, grid, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

/* A step, and how much GPU time it takes. */
static uint64_t step_between(enum between between)
{
    for (unsigned i = 0; i < AHEAD; i++) {
        launch(LEAST_GRID, KERNEL_NS);
        put(between == EVERYTHING ? COPY + i % 3 : between);
    }
    return (uint64_t)KERNEL_NS * AHEAD;
}

static uint64_t step_of_grids(void)
{
    static unsigned grid = LEAST_GRID;
    for (unsigned i = 0; i < SMALL_AHEAD; i++)
        launch(grid++, 20000);
    return UINT64_C(20000) * SMALL_AHEAD;
}

/* A rectangle, or two layers of half of it. */
static void move_box(bool flat)
{
    const CUDA_MEMCPY2D rectangle = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source, .srcPitch = SIDE, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = target,
        .dstPitch = SIDE, .WidthInBytes = SIDE, .Height = SIDE,
    };
    const CUDA_MEMCPY3D box = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source, .srcPitch = SIDE, .srcHeight = SIDE / 2, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = target, .dstPitch = SIDE, .dstHeight = SIDE / 2, .WidthInBytes = SIDE, .Height = SIDE / 2, .Depth = 2,
    };
    if (flat)
        CHECK(cuMemcpy2DAsync_v2(&rectangle, stream));
    else
        CHECK(cuMemcpy3DAsync_v2(&box, stream));
}

static void move(enum move which)
{
    static unsigned count;
    if (which == FILL)
        CHECK(cuMemsetD32Async(target, 0, BYTES / 4, stream));
    else if (which == DEVICE)
        CHECK(cuMemcpyDtoDAsync_v2(target, source, BYTES, stream));
    else
        move_box(count++ % 2 == 0);
}

static uint64_t cost_of_one_move(enum move which)
{
    CUevent begin, end;
    float milliseconds;
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    launch(LEAST_GRID, 5000000);                /* so that nothing but the move is between the marks */
    CHECK(cuEventRecord(begin, stream));
    move(which);
    CHECK(cuEventRecord(end, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuEventElapsedTime(&milliseconds, begin, end));
    CHECK(cuEventDestroy_v2(begin));
    CHECK(cuEventDestroy_v2(end));
    return (uint64_t)(milliseconds * 1e6f);
}

/* The least of some: a process that gets no processor while the kernel runs puts its move 20 ms later, when the limit allows more. */
static uint64_t cost_of_move(enum move which)
{
    uint64_t least = cost_of_one_move(which);
    for (unsigned i = 1; i < MEASURED; i++) {
        uint64_t cost = cost_of_one_move(which);
        least = cost < least ? cost : least;
    }
    return least;
}

static uint64_t step_of_moves(enum move which, uint64_t cost)
{
    launch(LEAST_GRID, KERNEL_NS);
    for (unsigned i = 0; i < SMALL_AHEAD; i++)
        move(which);
    return KERNEL_NS + cost * SMALL_AHEAD;
}

static void prepare(void)
{
    open_device(0);
    work = load_kernel(kernels, "work");
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuMemAlloc_v2(&target, BYTES));
    CHECK(cuMemAlloc_v2(&source, BYTES));
    CHECK(cuMemAlloc_v2(&word, sizeof(uint32_t)));
    CHECK(cuMemcpyHtoD_v2(word, host, sizeof(uint32_t)));
}

/* Where the kind stands in the list; `count`: nowhere. */
static unsigned place_in(const char *const *names, unsigned count, const char *kind)
{
    unsigned place = 0;
    while (place < count && strcmp(names[place], kind) != 0)
        place++;
    return place;
}

static uint64_t step(const char *kind, uint64_t cost)
{
    if (strcmp(kind, "grids") == 0)
        return step_of_grids();
    if (cost != 0)
        return step_of_moves((enum move)place_in(moves, MOVES, kind), cost);
    return step_between(strcmp(kind, "shared") == 0 ? NOTHING : (enum between)place_in(betweens, VALUE, kind));
}

/* ---- what is counted ---- */

static void launch_beside(double seconds)
{
    uint64_t endless = UINT64_C(60000000000) / ROUND_NS, end = now_ns() + (uint64_t)(seconds * 1e9);
    unsigned count = 0;
    void *parameters[] = {&endless};
    CUfunction narrow = load_kernel(kernels, "narrow");
    CHECK(cuLaunchKernel(narrow, 1, 1, 1, 32, 1, 1, 0, side, parameters, NULL));
    endless = 100000 / ROUND_NS;
    while (now_ns() < end) {
        CHECK(cuLaunchKernel(narrow, 2, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
        CHECK(cuStreamSynchronize(stream));
        count += now_ns() + UINT64_C(1000000000) > end;
    }
    printf("{\"per_second\": %u}\n", count);
    fflush(stdout);
    _exit(0);
}

static void *of_the_driver(const char *name)
{
    void *driver = dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_NOLOAD), *found = driver == NULL ? NULL : dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "mixing: this is not the emulated driver\n");
        exit(1);
    }
    return found;
}

static void capture(void)
{
    uint64_t (*violations)(void);
    size_t nodes = 0, found;
    *(void **)&violations = of_the_driver("vcuda_emulator_capture_violations");
    for (unsigned mode = 0; mode < 3; mode++) {
        CUgraph graph;
        CUgraphExec exec;
        step_between(HOST);
        CHECK(cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)mode));
        for (unsigned i = 0; i < AHEAD; i++) {
            launch(LEAST_GRID, KERNEL_NS);
            put(i % 2 == 0 ? COPY : HOST);
            put(RECTANGLE);
            move((enum move)(i % MOVES));
            CHECK(cuMemcpyAsync(target, source, BYTES, stream));
        }
        CHECK(cuStreamEndCapture(stream, &graph));
        CHECK(cuGraphGetNodes(graph, NULL, &found));
        nodes += found;
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuStreamSynchronize(stream));
    }
    printf("{\"nodes\": %zu, \"violations\": %llu}\n", nodes, (unsigned long long)violations());
}

static void put_bare(void)
{
    uint64_t (*calls)(const char *symbol);
    *(void **)&calls = of_the_driver("vcuda_emulator_calls");
    CHECK(cuEventRecord(event, side));
    launch(LEAST_GRID, KERNEL_NS);
    CHECK(cuStreamSynchronize(stream));
    put(COPY);
    uint64_t before = calls("cuEventRecord");
    for (unsigned i = 0; i < SMALL_AHEAD; i++) {
        put(COPY);
        put(HOST);
        put(RECTANGLE);
        CHECK(cuStreamWriteValue32_v2(stream, word, i, 0));
        CHECK(cuStreamWaitValue32_v2(stream, word, i, 0));
        CHECK(cuStreamWaitEvent(stream, event, 0));
    }
    CHECK(cuStreamSynchronize(stream));
    printf("{\"records\": %llu}\n", (unsigned long long)(calls("cuEventRecord") - before));
}

enum way { FROM_HOST, TO_ANOTHER, BY_POINTERS, BETWEEN_CONTEXTS, BATCH };

static CUdeviceptr on_another(void)
{
    CUcontext context, own;
    CUdeviceptr memory;
    CHECK(cuCtxGetCurrent(&own));
    CHECK(cuDevicePrimaryCtxRetain(&context, 1));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemAlloc_v2(&memory, BYTES));
    CHECK(cuCtxSetCurrent(own));
    return memory;
}

/* From the host, and then from there. */
static void put_batch(CUdeviceptr from)
{
    CUdeviceptr targets[] = {target, target}, sources[] = {(CUdeviceptr)(uintptr_t)host, from};
    size_t sizes[] = {1, BYTES};
    CHECK(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, NULL, NULL, 0, stream));
}

/* Behind a copy from the host no batch is open. */
static unsigned long long records_of(enum way way, CUdeviceptr from)
{
    uint64_t (*calls)(const char *symbol);
    CUcontext context;
    CHECK(cuCtxGetCurrent(&context));
    *(void **)&calls = of_the_driver("vcuda_emulator_calls");
    put(COPY);
    CHECK(cuStreamSynchronize(stream));
    uint64_t before = calls("cuEventRecord");
    for (unsigned i = 0; i < SMALL_AHEAD; i++) {
        if (way == FROM_HOST)
            put(COPY);
        else if (way == BATCH)
            put_batch(from);
        else if (way == BY_POINTERS)
            CHECK(cuMemcpyAsync(target, from, BYTES, stream));
        else
            CHECK(cuMemcpyPeerAsync(target, context, from, context, BYTES, stream));
    }
    CHECK(cuStreamSynchronize(stream));
    return (unsigned long long)(calls("cuEventRecord") - before);
}

static void put_ways(void)
{
    CUgraph graph;
    CUdeviceptr another = on_another();
    launch(LEAST_GRID, KERNEL_NS);
    CHECK(cuStreamSynchronize(stream));
    printf("{\"host\": %llu, ", records_of(FROM_HOST, 0));
    printf("\"another\": %llu, ", records_of(TO_ANOTHER, another));
    printf("\"pointers\": %llu, ", records_of(BY_POINTERS, source));
    CHECK(cuStreamBeginCapture_v2(side, CU_STREAM_CAPTURE_MODE_RELAXED));
    printf("\"captured\": %llu, ", records_of(BY_POINTERS, source));
    CHECK(cuStreamEndCapture(side, &graph));
    printf("\"contexts\": %llu, ", records_of(BETWEEN_CONTEXTS, source));
    printf("\"batch\": %llu, ", records_of(BATCH, source));
    printf("\"batch from the host\": %llu}\n", records_of(BATCH, (CUdeviceptr)(uintptr_t)host));
}

int main(int count, char **words)
{
    const char *kind = count > 2 ? words[1] : "";
    enum move which = (enum move)place_in(moves, MOVES, kind);
    prepare();
    if (strcmp(kind, "persistent") == 0)
        launch_beside(strtod(words[2], NULL));
    void (*counted)(void) = strcmp(kind, "captured") == 0 ? capture : strcmp(kind, "bare") == 0 ? put_bare : strcmp(kind, "ways") == 0 ? put_ways : NULL;
    if (counted != NULL) {
        counted();
        return 0;
    }
    uint64_t cost = which < MOVES ? cost_of_move(which) : 0;
    pthread_t other;
    CUcontext context;
    CHECK(cuCtxGetCurrent(&context));
    bool shared = strcmp(kind, "shared") == 0 && pthread_create(&other, NULL, put_often, context) == 0;
    uint64_t began = now_ns(), seconds = (uint64_t)(strtod(words[2], NULL) * 1e9), warm = 0, done = 0;
    while (now_ns() < began + seconds) {
        done += step(kind, cost);
        CHECK(cuStreamSynchronize(stream));
        if (warm == 0 && now_ns() >= began + UINT64_C(1000000000)) {
            warm = now_ns();
            done = 0;
        }
    }
    atomic_store(&over, true);
    if (shared)
        pthread_join(other, NULL);
    printf("{\"share_percent\": %.3f}\n", 100 * (double)done / (double)(now_ns() - warm));
    return 0;
}
