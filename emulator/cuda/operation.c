/*
 * See operation.h; and the entry points cuStreamWaitValue and cuStreamWriteValue. The first version of these calls and the second differ in what a driver
 * has to be told before it offers them, which makes no difference here. Not in a capture, and no batches (cuStreamBatchMemOp).
 */
#include "operation.h"

#include "capture.h"
#include "entry.h"
#include "lock.h"
#include "memory.h"
#include "stream_state.h"

/* As CUstreamWaitValue_flags and CUstreamWriteValue_flags. */
enum { AT_LEAST, EQUAL, ANY_OF, NOT_ALL_OF, COMPARISONS = 3, NO_BARRIER = 1 };

static bool is_reached(const struct operation *wait, uint64_t found)
{
    uint64_t beyond = found - wait->value, mask = wait->size == 4 ? UINT32_MAX : UINT64_MAX;
    switch (wait->flags & COMPARISONS) {
    case AT_LEAST:
        return (beyond >> (wait->size * 8 - 1) & 1) == 0;      /* the difference as a signed number */
    case EQUAL:
        return (beyond & mask) == 0;
    case ANY_OF:
        return (found & wait->value & mask) != 0;
    default:
        return (~(found | wait->value) & mask) != 0;
    }
}

bool operation_perform(const struct operation *operation)
{
    uint64_t word = operation->value;
    bool there = memory_word(operation->address, operation->size, !operation->wait, &word);
    return !there || !operation->wait || is_reached(operation, word);
}

static CUresult put(CUstream handle, const struct operation *operation, bool per_thread)
{
    struct stream *stream;
    uint64_t ignored;
    CUresult error = stream_of(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS)
        error = capture_forbids(stream);
    if (error != CUDA_SUCCESS)
        return error;
    unsigned known = operation->wait ? COMPARISONS : NO_BARRIER;
    if ((operation->flags & ~known) != 0 ||
        !memory_word(operation->address, operation->size, false, &ignored))
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (!stream_push(stream, &(struct item){.kind = ITEM_OPERATION, .operation = *operation}))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    driver_unlock();
    return error;
}

#define OPERATION(symbol, type, wait, per_thread)                                                                                    \
    ENTRY(symbol)(CUstream stream, CUdeviceptr address, type value, unsigned int flags)                                              \
    {                                                                                                                                \
        return put(stream, &(struct operation){address, value, sizeof value, flags, wait}, per_thread);                              \
    }

#define OPERATIONS(base, type, wait)                                                                                                 \
    OPERATION(base, type, wait, false)                                                                                               \
    OPERATION(base##_ptsz, type, wait, true)                                                                                         \
    OPERATION(base##_v2, type, wait, false)                                                                                          \
    OPERATION(base##_v2_ptsz, type, wait, true)

OPERATIONS(cuStreamWaitValue32, uint32_t, true)
OPERATIONS(cuStreamWaitValue64, uint64_t, true)
OPERATIONS(cuStreamWriteValue32, uint32_t, false)
OPERATIONS(cuStreamWriteValue64, uint64_t, false)
