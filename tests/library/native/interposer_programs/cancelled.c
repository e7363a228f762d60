/*
 * Threads that take and give device memory are cancelled, ROUNDS times, wherever they are. They allow it around the library's calls alone, and where
 * they hold nothing: whatever is charged in the end was left behind by the library.
 *
 *   cancelled ROUNDS LIMIT
 *
 * Out: "nothing is left", and 0; what is left, and 1. A lock that was left behind ends it by its alarm.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"

enum { THREADS = 4, SECONDS = 40 };

static __typeof__(cuMemAlloc_v2) *allocate;
static __typeof__(cuMemFree_v2) *release;
static __typeof__(cuMemCreate) *create;
static __typeof__(cuMemRelease) *drop;
static uint64_t (*used)(int index);
static size_t size;     /* of which only some fit at once */

#define CANCELLABLE(call)                                                                                              \
    ({                                                                                                                 \
        int state_;                                                                                                    \
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state_);                                                        \
        CUresult error_ = call;                                                                                        \
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_);                                                       \
        error_;                                                                                                        \
    })

static void *take_and_give(void *unused)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    int state;
    for (;;) {
        CUdeviceptr pointer;
        CUmemGenericAllocationHandle handle;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        if (CANCELLABLE(allocate(&pointer, size)) == CUDA_SUCCESS)
            CANCELLABLE(release(pointer));
        if (CANCELLABLE(create(&handle, size, &prop, 0)) == CUDA_SUCCESS)
            CANCELLABLE(drop(handle));
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
        pthread_testcancel();
    }
    return unused;
}

static void one_round(unsigned *seed)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, take_and_give, NULL);
    usleep((unsigned)rand_r(seed) % 1500);
    for (int i = 0; i < THREADS; i++)
        pthread_cancel(threads[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **words)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *state = dlopen("libvcuda.so.1", RTLD_NOW);
    unsigned seed = 1;
    CUdeviceptr pointer;
    if (count != 3 || cuda == NULL || state == NULL)
        return 2;
    alarm(SECONDS);
    *(void **)&allocate = dlsym(cuda, "cuMemAlloc_v2");
    *(void **)&release = dlsym(cuda, "cuMemFree_v2");
    *(void **)&create = dlsym(cuda, "cuMemCreate");
    *(void **)&drop = dlsym(cuda, "cuMemRelease");
    *(void **)&used = dlsym(state, "vcuda_used");
    size = strtoull(words[2], NULL, 10) / 3;
    for (int i = 0; i < atoi(words[1]); i++)
        one_round(&seed);
    if (used(0) != 0 || allocate(&pointer, 3 * size) != CUDA_SUCCESS) {
        printf("%llu bytes are left\n", (unsigned long long)used(0));
        return 1;
    }
    puts("nothing is left");
    return 0;
}
