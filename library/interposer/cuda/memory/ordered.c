/* Stream-ordered allocation; see ordered.h. */
#include "ordered.h"

#include "charging.h"
#include "memory.h"
#include "ordinals.h"
#include "reclaim.h"
#include "sizes.h"
#include "stream_device.h"
#include "virtual_hooks.h"

static void count_in(struct ordered *ordered, CUmemoryPool pool)
{
    ordered->pool = pools_of(pool, ordered->index);
    if (ordered->pool == NULL)
        ordered->verdict = VERDICT_REFUSE;
}

void ordered_find_current(struct ordered *ordered, CUstream stream)
{
    CUdevice device;
    CUmemoryPool pool;

    *ordered = (struct ordered){.verdict = VERDICT_PASS};
    if (stream_device(stream, &device))
        ordered->verdict = account_verdict(device, &ordered->index);
    if (ordered->verdict != VERDICT_COUNT)
        return;
    memory_meet(ordered->index);
    if (DRIVER(cuDeviceGetMemPool, &pool, device) == CUDA_SUCCESS)
        count_in(ordered, pool);
    else
        ordered->verdict = VERDICT_PASS;
}

/* Of the pools that were never seen, those that the driver made for the devices count; others hold host memory, or another process's. */
static bool is_default(const struct ordered *ordered, CUmemoryPool pool)
{
    CUmemoryPool standard;
    int device = ordinals_get(ordered->index);

    return device >= 0 && DRIVER(cuDeviceGetDefaultMemPool, &standard, device) == CUDA_SUCCESS && standard == pool;
}

/* Of a GPU that the limits do not name. */
static bool is_default_of_unnamed(CUmemoryPool pool)
{
    CUmemoryPool standard;
    int count = 0;
    bool found = false;

    DRIVER(cuDeviceGetCount, &count);
    for (CUdevice device = 0; !found && device < count; device++)
        found = device_index(device) == VCUDA_UNNAMED && DRIVER(cuDeviceGetDefaultMemPool, &standard, device) == CUDA_SUCCESS && standard == pool;
    return found;
}

void ordered_find(struct ordered *ordered, CUmemoryPool pool)
{
    *ordered = (struct ordered){.verdict = vcuda_memory_closed() ? VERDICT_REFUSE : VERDICT_PASS};
    ordered->pool = pools_known(pool, &ordered->index);
    if (ordered->pool != NULL)
        ordered->verdict = VERDICT_COUNT;
    for (unsigned i = 0; ordered->verdict == VERDICT_PASS && i < vcuda_limits()->device_count; i++) {
        ordered->index = i;
        if (is_default(ordered, pool) && account_verdict(ordinals_get(i), &ordered->index) == VERDICT_COUNT) {
            ordered->verdict = VERDICT_COUNT;
            count_in(ordered, pool);
        }
    }
    if (ordered->verdict == VERDICT_PASS && is_default_of_unnamed(pool))
        ordered->verdict = VERDICT_REFUSE;
}

bool ordered_begin(struct ordered *ordered, uint64_t bytes)
{
    ordered->bytes = sizes_pooled(bytes);
    if (ordered->verdict == VERDICT_COUNT && bytes == 0)
        ordered->verdict = VERDICT_PASS;
    if (ordered->verdict != VERDICT_COUNT)
        return ordered->verdict == VERDICT_PASS;
    reclaim_follow();
    if (!account_open(&ordered->span, ordered->index, ordered->bytes))
        return false;
    pools_begin(ordered->pool, ordered->bytes);
    return true;
}

void ordered_fail(struct ordered *ordered)
{
    if (ordered->verdict == VERDICT_PASS)
        return;
    pools_fail(ordered->pool, ordered->bytes);
    account_end(&ordered->span);
}

static bool record(const struct ordered *ordered, CUdeviceptr pointer)
{
    return charge_record(&charged_pointers, pointer, (struct charge){ordered->bytes, ordered->pool, ordered->index, CHARGE_POOLED});
}

bool ordered_end(struct ordered *ordered, CUdeviceptr pointer)
{
    bool kept;

    if (ordered->verdict == VERDICT_PASS)
        return true;
    bool due = pools_succeed(ordered->pool, ordered->bytes);
    if (due)
        pools_read(ordered->pool, reclaim_read_pool);
    kept = !(due && account_overrun(ordered->index)) && record(ordered, pointer);
    if (kept)
        account_end(&ordered->span);
    return kept;
}

void ordered_undone(struct ordered *ordered)
{
    pools_freed(ordered->pool, ordered->bytes);
    reclaim_trim(ordered->index);
    account_end(&ordered->span);
}

void ordered_meet(CUmemoryPool pool, CUmemLocation location)
{
    unsigned index;
    CUdevice device;

    if (virtual_device_at(&location, &device) && account_verdict(device, &index) == VERDICT_COUNT)
        pools_of(pool, index);
}
