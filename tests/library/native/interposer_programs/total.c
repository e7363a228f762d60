/* Linked against libcuda.so.1: prints the memory that the first GPU is said to have. */
#include <stdio.h>

#include "cuda.h"

int main(void)
{
    size_t total = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceTotalMem_v2(&total, 0) != CUDA_SUCCESS)
        return 1;
    printf("%zu\n", total);
    return 0;
}
