/*
 * Threads use the library while one forks, argv[1] times; each child uses it too and ends. A child that hangs is ended by its alarm and counts as a failure.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

enum { THREADS = 3, CHILD_SECONDS = 10 };

static __typeof__(cuDevicePrimaryCtxRetain) *retain;
static __typeof__(cuMemGetInfo_v2) *get_info;
static int (*slot_number)(void);
static _Atomic int ended;

static int use_once(void)
{
    CUcontext context;
    size_t free_bytes, total;
    return retain(&context, 0) != CUDA_SUCCESS || get_info(&free_bytes, &total) != CUDA_SUCCESS || total != (size_t)2 << 30 ||
           slot_number() < 0;
}

static void *use_often(void *failed)
{
    while (!atomic_load(&ended)) {
        if (use_once())
            atomic_store((_Atomic int *)failed, 1);
    }
    return NULL;
}

static int fork_once(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(use_once());
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(int count, char **arguments)
{
    static _Atomic int failed;
    pthread_t threads[THREADS];
    int children = count == 2 ? atoi(arguments[1]) : 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *state = dlopen("libvcuda.so.1", RTLD_NOW);
    if (cuda == NULL || state == NULL)
        return 2;
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&get_info = dlsym(cuda, "cuMemGetInfo_v2");
    *(void **)&slot_number = dlsym(state, "vcuda_slot_number");
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, use_often, &failed);
    for (int i = 0; i < children; i++) {
        if (fork_once())
            atomic_store(&failed, 1);
    }
    atomic_store(&ended, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d children\n", children);
    return atomic_load(&failed);
}
