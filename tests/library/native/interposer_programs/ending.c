/* Ends with status 7 as argv[1] says, while the helper works: by exit, _exit, return from main, or exit in another thread. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

static void *end_from_thread(void *unused)
{
    exit(7);
    return unused;
}

int main(int count, char **arguments)
{
    const char *way = count == 2 ? arguments[1] : "";
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    __typeof__(cuDevicePrimaryCtxRetain) *retain;
    CUcontext context;
    pthread_t thread;
    if (library == NULL)
        return 1;
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    if (retain(&context, 0) != CUDA_SUCCESS)
        return 2;
    if (strcmp(way, "exit") == 0)
        exit(7);
    if (strcmp(way, "_exit") == 0)
        _exit(7);
    if (strcmp(way, "thread") == 0 && pthread_create(&thread, NULL, end_from_thread, NULL) == 0)
        pthread_join(thread, NULL);
    return 7;
}
