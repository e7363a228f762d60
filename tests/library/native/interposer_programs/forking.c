/*
 * Threads use the library while one forks, argv[1] times; each child uses it too and ends. A child that hangs is killed and counts as a failure, but
 * argv[2] of them may.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

enum { THREADS = 3, LOOKS_A_SECOND = 1000, LOOKS = 30 * LOOKS_A_SECOND };

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

static int may_hang;

/* The parent looks at the clock, because a child that hangs may have every signal blocked. */
static int fork_once(void)
{
    int status = 0, looks = 0;
    pid_t child = fork(), found = 0;
    if (child == 0)
        _exit(use_once());
    while (child > 0 && (found = waitpid(child, &status, WNOHANG)) == 0 && looks++ < LOOKS)
        usleep(1000000 / LOOKS_A_SECOND);
    if (child < 0 || found != 0)
        return found != child || status != 0;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return may_hang-- <= 0;
}

int main(int count, char **arguments)
{
    static _Atomic int failed;
    pthread_t threads[THREADS];
    int children = count >= 2 ? atoi(arguments[1]) : 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *state = dlopen("libvcuda.so.1", RTLD_NOW);
    if (cuda == NULL || state == NULL)
        return 2;
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&get_info = dlsym(cuda, "cuMemGetInfo_v2");
    *(void **)&slot_number = dlsym(state, "vcuda_slot_number");
    may_hang = count == 3 ? atoi(arguments[2]) : 0;
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
