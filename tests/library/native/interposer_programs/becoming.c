/*
 * Takes device memory and becomes another program. Linked against nothing but libcuda.so.1.
 *
 *   becoming BYTES TIMES WAY
 *
 * Makes a context, takes BYTES, and execs itself, TIMES times in all; the last one does as WAY says: `sleep` becomes sleep; `leave` does so too, with
 * a child of fork left behind that never calls the driver; `stay` stays; `close` closes every descriptor above 2 and stays. Out: "done" before that, or what
 * was refused, and 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

static void end(const char *way)
{
    puts("done");
    fflush(stdout);
    if (strcmp(way, "leave") == 0 && fork() == 0)
        pause();
    if (strcmp(way, "close") == 0) {
        for (int file = 3; file < 1024; file++)
            close(file);
    }
    if (strcmp(way, "close") == 0 || strcmp(way, "stay") == 0)
        pause();
    execlp("sleep", "sleep", "60", NULL);
}

int main(int count, char **words)
{
    CUcontext context;
    CUdeviceptr pointer;
    char left[16];
    if (count != 4 || cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 2;
    CUresult error = cuMemAlloc_v2(&pointer, strtoull(words[1], NULL, 10));
    if (error != CUDA_SUCCESS) {
        printf("error %d with %s to go\n", (int)error, words[2]);
        return 1;
    }
    snprintf(left, sizeof left, "%d", atoi(words[2]) - 1);
    if (atoi(words[2]) > 1)
        execl("/proc/self/exe", words[0], words[1], left, words[3], (char *)NULL);
    end(words[3]);
    return 3;
}
