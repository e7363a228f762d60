/*
 * One launch of a kernel, however it was asked for: checked, and turned into work for a stream.
 *
 * In: a function, a configuration and parameters, as pointers or as a packed buffer. Out: the error that the driver would give, or how long it takes and
 * whether it leaves room beside it. Not here: streams.
 */
#ifndef VCUDA_EMULATOR_KERNEL_LAUNCH_H
#define VCUDA_EMULATOR_KERNEL_LAUNCH_H

#include "module.h"
#include "stream.h"

struct launch {
    CUfunction handle;
    struct function *function;  /* of the handle, in the context it is launched in */
    unsigned grid[3], block[3], shared_bytes;
    bool cooperative;
    void **parameters, **extra;
};

/* `launch->function` is filled in. */
CUresult launch_check(struct launch *launch, struct context *context, struct work *out);
/* Its parameters, one behind the other as the kernel declares them; false: there are none to read. */
bool launch_copy_parameters(const struct launch *launch, unsigned char *out);
/* How many blocks of so many threads a multiprocessor holds. */
unsigned blocks_each(const struct gpu *gpu, unsigned threads);

#endif
