/*
 * Takes device memory by ways that are no allocation of their own, until it is refused or has enough. Linked against nothing but libcuda.so.1.
 *
 *   holes WAY [--block-mib N] [--most-mib N]
 *     export    cuMemCreate, exported to a descriptor, released; at the end all are imported again, mapped and written to
 *     module    modules with a global variable of a block
 *     context   contexts beside the primary one; a block is what the caller says of one
 *     heap      the heap of kernels' malloc, as large as may be; a kernel that allocates from it makes the driver take it
 *     ipc       allocations that another process opens before this one frees them
 *     prefetch  memory of the host, moved to the GPU (HMM, Grace)
 *
 * Out: one line of JSON: what it has, how the next was refused (0: it was not), how many blocks it could use again, and whether a kernel still runs.
 * Then it holds all of it until stdin ends. `cannot` in its place: why this driver does not know the way. Errors: one sentence on stderr, status 1.
 */
#include <dlfcn.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { MOST = 4096, TOUCHED = 1 << 20 };

/* malloc is the driver's own in every PTX; the pointer goes nowhere, which a compiler may not know. */
static const char heap_text[] = MODULE_HEAD ".extern .func (.param .b64 got) malloc(.param .b64 size);\n"
                                            ".visible .global .align 8 .u64 kept;\n"
                                            ".visible .entry work()\n{\n// vcuda-emulator: ns = 1000\n"
                                            ".reg .b64 %rd<3>;\nmov.u64 %rd1, 1024;\n{\n.param .b64 size;\n.param .b64 got;\n"
                                            "st.param.b64 [size], %rd1;\ncall.uni (got), malloc, (size);\nld.param.b64 %rd2, [got];\n}\n"
                                            "st.global.u64 [kept], %rd2;\nret;\n}\n";
static const char kernel_text[] = MODULE_HEAD ".visible .entry work()\n{\n// vcuda-emulator: ns = 1000\nret;\n}\n";

static CUdevice device;
static size_t block, most;
static unsigned count, again;
static int held[MOST];              /* descriptors of `export` */
static FILE *to_child, *from_child; /* of `ipc` */


static CUmemAllocationProp shareable(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}

static CUresult take_export(void)
{
    CUmemAllocationProp prop = shareable();
    CUmemGenericAllocationHandle handle;
    CUresult error = cuMemCreate(&handle, block, &prop, 0);
    if (error != CUDA_SUCCESS)
        return error;
    error = cuMemExportToShareableHandle(&held[count], handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CHECK(cuMemRelease(handle));
    return error;
}

static CUresult use_again(int descriptor)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult error = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error != CUDA_SUCCESS || (error = cuMemAddressReserve(&address, block, 0, 0, 0)) != CUDA_SUCCESS ||
        (error = cuMemMap(address, block, 0, handle, 0)) != CUDA_SUCCESS || (error = cuMemSetAccess(address, block, &access, 1)) != CUDA_SUCCESS)
        return error;
    return cuMemsetD8_v2(address, 1, TOUCHED);
}

static CUresult take_module(void)
{
    static char text[512];
    CUmodule module;
    snprintf(text, sizeof text, MODULE_HEAD ".visible .global .align 8 .b8 big[%zu];\n.visible .entry work()\n{\nret;\n}\n", block);
    CUdeviceptr address;
    size_t size;
    CUresult error = cuModuleLoadData(&module, text);
    return error != CUDA_SUCCESS ? error : cuModuleGetGlobal_v2(&address, &size, module, "big"); /* where loading is lazy, now it is there */
}

static CUresult take_context(void)
{
    CUcontext context, primary;
    CHECK(cuCtxGetCurrent(&primary));
    CUresult error = cuCtxCreate_v2(&context, 0, device);
    CHECK(cuCtxSetCurrent(primary));
    return error;
}

/* All at once: a heap has one size. */
static CUresult take_heap(void)
{
    block = most;
    CUresult error = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, block);
    if (error != CUDA_SUCCESS)
        return error;
    CUmodule module;
    CUfunction function;
    if ((error = cuModuleLoadData(&module, heap_text)) != CUDA_SUCCESS || (error = cuModuleGetFunction(&function, module, "work")) != CUDA_SUCCESS ||
        (error = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) != CUDA_SUCCESS)
        return error;
    return cuCtxSynchronize();
}

/* The other process: opens what it is told, answers with the driver's word for it, and holds it until its stdin ends. */
static int hold_opened(void)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    open_device(0);
    while (fread(&handle, sizeof handle, 1, stdin) == 1) {
        printf("%d\n", (int)cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        fflush(stdout);
    }
    return 0;
}

static void start_child(void)
{
    extern char **environ;
    char *words[] = {"holes", "opened", NULL};
    int down[2], up[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe(down) != 0 || pipe(up) != 0 || posix_spawn_file_actions_init(&actions) != 0)
        exit(1);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    posix_spawn_file_actions_addclose(&actions, down[1]); /* else its stdin never ends */
    if (posix_spawn(&pid, "/proc/self/exe", &actions, NULL, words, environ) != 0) {
        fprintf(stderr, "holes: no second process can be started\n");
        exit(1);
    }
    close(down[0]);
    close(up[1]);
    to_child = fdopen(down[1], "w");
    from_child = fdopen(up[0], "r");
}

static CUresult take_ipc(void)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    int answer = -1;
    if (to_child == NULL)
        start_child();
    CUresult error = cuMemAlloc_v2(&address, block);
    if (error != CUDA_SUCCESS)
        return error;
    CHECK(cuIpcGetMemHandle(&handle, address));
    if (fwrite(&handle, sizeof handle, 1, to_child) != 1 || fflush(to_child) != 0 || fscanf(from_child, "%d", &answer) != 1)
        exit(1);
    CHECK(cuMemFree_v2(address));
    return (CUresult)answer;
}

typedef CUresult prefetch_function(CUdeviceptr, size_t, CUdevice, CUstream);

static CUresult take_prefetch(void)
{
    prefetch_function *prefetch;
    void *found = dlsym(RTLD_DEFAULT, "cuMemPrefetchAsync");
    memcpy(&prefetch, &found, sizeof found);
    void *memory = mmap(NULL, block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "holes: the host has no memory left\n");
        exit(1);
    }
    CUresult error = prefetch((CUdeviceptr)(uintptr_t)memory, block, device, NULL);
    return error != CUDA_SUCCESS ? error : cuCtxSynchronize();
}

static const char *knows_prefetch(void)
{
    int pageable = 0;
    if (dlsym(RTLD_DEFAULT, "cuMemPrefetchAsync") == NULL)
        return "the driver has no cuMemPrefetchAsync";
    if (cuDeviceGetAttribute(&pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device) != CUDA_SUCCESS || pageable == 0)
        return "the GPU does not reach the host's pageable memory (no HMM, no Grace)";
    return NULL;
}

struct way {
    const char *name;
    CUresult (*take)(void);
    const char *(*knows)(void);     /* NULL: every driver does */
};

static const struct way ways[] = {
    {"export", take_export, NULL},   {"module", take_module, NULL}, {"context", take_context, NULL},
    {"heap", take_heap, NULL},       {"ipc", take_ipc, NULL},       {"prefetch", take_prefetch, knows_prefetch},
};

static int kernel_runs(void)
{
    CUmodule module;
    CUfunction function;
    return cuModuleLoadData(&module, kernel_text) == CUDA_SUCCESS && cuModuleGetFunction(&function, module, "work") == CUDA_SUCCESS &&
           cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS;
}

static void take_all(const struct way *way)
{
    CUresult refusal = CUDA_SUCCESS;
    while (count < MOST && (size_t)count * block < most && (refusal = way->take()) == CUDA_SUCCESS)
        count++;
    for (unsigned i = 0; way->take == take_export && i < count; i++)
        again += use_again(held[i]) == CUDA_SUCCESS;
    printf("{\"pid\": %d, \"got\": %zu, \"blocks\": %u, \"refusal\": %d, \"used_again\": %u, \"kernel_runs\": %d}\n", (int)getpid(), count * block, count,
           (int)refusal, again, kernel_runs());
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

int main(int words, char **word)
{
    const struct way *way = NULL;
    if (words == 2 && strcmp(word[1], "opened") == 0)
        return hold_opened();
    block = (size_t)256 << 20;
    most = (size_t)6 << 30;
    for (unsigned i = 0; words > 1 && i < sizeof ways / sizeof ways[0]; i++)
        way = strcmp(ways[i].name, word[1]) == 0 ? &ways[i] : way;
    for (int i = 2; i + 1 < words; i += 2) {
        size_t value = (size_t)strtoull(word[i + 1], NULL, 10) << 20;
        if (strcmp(word[i], "--block-mib") == 0)
            block = value;
        else if (strcmp(word[i], "--most-mib") == 0)
            most = value;
    }
    if (way == NULL || block == 0) {
        fprintf(stderr, "holes: the first word must be export, module, context, heap, ipc or prefetch, and blocks have 1 MiB at least\n");
        return 2;
    }
    device = open_device(0);
    const char *why = way->knows == NULL ? NULL : way->knows();
    if (why != NULL)
        printf("{\"cannot\": \"%s\"}\n", why);
    else
        take_all(way);
    return 0;
}
