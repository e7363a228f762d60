/* Linked to a function of CUDA 13: prints what it says. Arguments do not matter, because the driver does not have it. */
#include <stdio.h>

int cuCtxCreate_v4(void *context, void *parameters, unsigned int flags, int device);

int main(void)
{
    printf("%d\n", cuCtxCreate_v4(0, 0, 0, 0));
    return 0;
}
