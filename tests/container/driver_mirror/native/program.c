/*
 * Linked against libcuda.so.1 as every program is. Out: what its own calls were answered, and those of a caller that opens the library by the names given as
 * arguments: "LINKED VERSION NAME=ANSWER...", where 1 is the driver's answer and 101 that of ours, which has asked the driver.
 */
#include <dlfcn.h>
#include <stdio.h>

int cuInit(unsigned int flags);
int cuDriverGetVersion(int *version);

int main(int count, char **names)
{
    int version = 0;
    cuDriverGetVersion(&version);
    printf("%d %d", cuInit(0), version);
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        int (*init)(unsigned int) = library != NULL ? (int (*)(unsigned int))dlsym(library, "cuInit") : NULL;
        printf(" %s=%d", names[i], init != NULL ? init(0) : -1);
    }
    printf("\n");
    return 0;
}
