/* A whole file and its size, with a NUL behind it; free() it. CUDA_ERROR_FILE_NOT_FOUND where it cannot be read. */
#ifndef VCUDA_EMULATOR_READ_FILE_H
#define VCUDA_EMULATOR_READ_FILE_H

#include <cuda.h>

CUresult read_whole_file(const char *path, char **out, size_t *size);

#endif
