/*
 * How much of its share of a GPU's time the container has used lately: for NVML's views.
 *
 * In: the region's sum of GPU time, which grows when work has ended, in steps as long as that work. Out: percent of the share. The sum has no history, so two
 * samples of it lie in the region, about half a second and a second old, made by the helper of some process of the container. Where nobody makes any, nobody
 * uses the GPU.
 *
 * Invariant: a process killed while it samples leaves one period wrong, no more. Words of two samples may be read mixed: the result has bounds.
 */
#include "internal.h"

static const uint64_t period_ns = UINT64_C(500000000);
static const uint64_t stale_ns = UINT64_C(2000000000);
static const uint64_t least_ns = UINT64_C(50000000);    /* a shorter time says nothing */

/* The process that moves the newer sample's time makes the sample. A time in the future is of a clock before a reboot. */
static void sample(struct region_device *device, uint64_t now)
{
    uint64_t newer = atomic_load(&device->sampled_ns[1]);
    if (now >= newer && now - newer < period_ns)
        return;
    if (!atomic_compare_exchange_strong(&device->sampled_ns[1], &newer, now))
        return;
    atomic_store(&device->sampled_ns[0], newer);
    atomic_store(&device->sampled_charged_ns[0], atomic_load(&device->sampled_charged_ns[1]));
    atomic_store(&device->sampled_charged_ns[1], atomic_load(&device->charged_ns));
}

void utilization_sample(void)
{
    struct region *region = vcuda_region();
    uint64_t now = vcuda_node_ns();
    for (uint32_t i = 0; region != NULL && i < vcuda_limits()->device_count; i++)
        sample(&region->devices[i], now);
}

static uint32_t percent(uint64_t used_ns, uint64_t time_ns, uint32_t cores)
{
    double of_share = (double)used_ns / (double)time_ns * 100 * LIMITS_NO_CORES / cores;
    return of_share > 100 ? 100 : (uint32_t)(of_share + 0.5);
}

int vcuda_utilization(int index)
{
    const struct limits_device *limits = vcuda_device(index);
    struct region *region = limits == NULL ? NULL : vcuda_region();
    if (region == NULL || limits->cores == 0 || limits->cores >= LIMITS_NO_CORES)
        return VCUDA_NOT_LIMITED;
    const struct region_device *device = &region->devices[index];
    uint64_t now = vcuda_node_ns(), newer = atomic_load(&device->sampled_ns[1]), begin = atomic_load(&device->sampled_ns[0]);
    int from = begin == 0;      /* of the first sample's time nothing is known */
    begin = from == 0 ? begin : newer;
    uint64_t used = atomic_load(&device->charged_ns) - atomic_load(&device->sampled_charged_ns[from]);
    if (newer == 0 || now < begin + least_ns || (now > newer && now - newer > stale_ns) || used > INT64_MAX)
        return 0;
    return (int)percent(used, now - begin, limits->cores);
}
