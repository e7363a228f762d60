/*
 * A program in which the library is loaded twice, the second time into a namespace of the dynamic linker (dlmopen). Linked against libcuda.so.1.
 *
 *   two_copies LIBCUDA BYTES
 *
 * Each copy makes the primary context its own and takes BYTES. Out: "done" when both have, then it stays.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"

static int begin(void *library, size_t bytes)
{
    CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set)(CUcontext), (*take)(CUdeviceptr *, size_t);
    CUcontext context;
    CUdeviceptr pointer;
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(library, "cuCtxSetCurrent");
    *(void **)&take = dlsym(library, "cuMemAlloc_v2");
    return init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS || set(context) != CUDA_SUCCESS || take(&pointer, bytes) != CUDA_SUCCESS;
}

int main(int count, char **words)
{
    size_t bytes = count == 3 ? strtoull(words[2], NULL, 10) : 0;
    void *first = dlopen("libcuda.so.1", RTLD_NOW), *second = dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW);
    if (first == NULL || second == NULL) {
        puts(dlerror());
        return 2;
    }
    if (begin(first, bytes) != 0 || begin(second, bytes) != 0)
        return 1;
    puts("done");
    fflush(stdout);
    return pause();
}
