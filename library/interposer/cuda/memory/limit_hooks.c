/*
 * cuCtxSetLimit: the heap of kernels, their printf's buffer, their stacks and the memory of their blocks take device memory that no allocation shows.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY where the container has no room for what a limit may take.
 * Invariant: what a limit may take beyond what it could before it was raised is charged until it is lowered or the context ends, whether the driver
 * takes it at once or at a launch. Other limits that take memory (those of the device runtime) are found by the reconciliation of overhead.
 */
#include "charging.h"
#include "overhead.h"
#include "owners.h"

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;

    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX / 2 : result;
}

/* How many can be on the GPU at once. */
static uint64_t at_once(CUdevice_attribute of_a_processor)
{
    CUdevice device;
    int processors = 0, each = 0;

    if (DRIVER(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        return 0;
    DRIVER(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    DRIVER(cuDeviceGetAttribute, &each, of_a_processor, device);
    return product((uint64_t)processors, (uint64_t)each);
}

static uint64_t bytes_of(CUlimit limit, uint64_t value)
{
    if (limit == CU_LIMIT_STACK_SIZE)
        return product(value, at_once(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
    if (limit == CU_LIMIT_PER_BLOCK_MEMORY_SIZE)
        return product(value, at_once(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
    return limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ? value : 0;
}

static uint64_t key_of(const void *owner, CUlimit limit)
{
    return (uint64_t)(uintptr_t)owner << 4 | (unsigned)limit;
}

/* The record of what was charged before becomes one of the sum. */
static void record(struct charging *charging, CUlimit limit)
{
    struct charge before = {0};
    uint64_t key = key_of(charging->owner, limit);

    if (charging->verdict == VERDICT_PASS)
        return;
    if (charges_take(&charged_limits, key, &before)) {
        account_managed(before.device, -(int64_t)before.bytes);
        charging->bytes += before.bytes;
    }
    if (!charge_end(charging, &charged_limits, key, CHARGE_MANAGED))
        account_end(&charging->span);   /* what cannot be recorded stays charged */
}

static CUresult raise(CUlimit limit, size_t value, uint64_t more)
{
    struct charging charging;

    if (!charge_begin(&charging, more))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuCtxSetLimit, limit, value);
    if (error == CUDA_SUCCESS)
        record(&charging, limit);
    else
        charge_fail(&charging);
    return error;
}

static CUresult lower(CUlimit limit, size_t value, uint64_t less)
{
    struct charge before;
    uint64_t key = key_of(owners_current(), limit);
    CUresult error = DRIVER(cuCtxSetLimit, limit, value);

    if (error != CUDA_SUCCESS || less == 0 || !charges_take(&charged_limits, key, &before))
        return error;
    uint64_t given = less < before.bytes ? less : before.bytes;
    account_managed(before.device, -(int64_t)given);
    account_uncharge(before.device, given);
    before.bytes -= given;
    if (before.bytes != 0)
        charge_record(&charged_limits, key, before);
    return error;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    size_t now;

    if (hook_nested() || !account_needed())
        return real.cuCtxSetLimit(limit, value);
    if (DRIVER(cuCtxGetLimit, &now, limit) != CUDA_SUCCESS)
        return DRIVER(cuCtxSetLimit, limit, value);
    uint64_t before = bytes_of(limit, now), after = bytes_of(limit, value);
    CUresult error = after > before ? raise(limit, value, after - before) : lower(limit, value, before - after);
    if (error == CUDA_SUCCESS)
        overhead_grew();
    return error;
}
