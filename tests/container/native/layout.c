/*
 * Prints what a compiler makes of library/abi: sizes, offsets and constants, one `name value` a line.
 * In: nothing. Out: lines that tests/container/test_layout.py compares with the Python side. Not here: any expectation.
 */
#include <stddef.h>
#include <stdio.h>

#include "activity.h"
#include "limits.h"
#include "region.h"

#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))
#define VALUE(name) printf(#name " %lld\n", (long long)(name))

static void magic(const char *name, uint64_t value)
{
    printf("%s %.8s\n", name, (const char *)&value);
}

static void limits(void)
{
    SIZE(limits_header);
    AT(limits_header, magic);
    AT(limits_header, version);
    AT(limits_header, size);
    AT(limits_header, device_count);
    AT(limits_header, flags);
    AT(limits_header, generation);
    AT(limits_header, grant);
    AT(limits_header, checksum);
    SIZE(limits_device);
    AT(limits_device, uuid);
    AT(limits_device, bus_id);
    AT(limits_device, memory_bytes);
    AT(limits_device, cores);
    AT(limits_device, soft_cores);
}

static void region(void)
{
    SIZE(region);
    AT(region, magic);
    AT(region, version);
    AT(region, size);
    AT(region, grant);
    AT(region, slot_high);
    AT(region, unknown_functions);
    AT(region, devices);
    AT(region, slots);
    SIZE(region_device);
    AT(region_device, peak);
    AT(region_device, refusals);
    AT(region_device, balance_ns);
    AT(region_device, refilled_ns);
    AT(region_device, charged_ns);
    AT(region_device, throttled_ns);
    AT(region_device, throttled_launches);
    AT(region_device, launches);
    AT(region_device, effective_cores);
    SIZE(region_slot);
    AT(region_slot, pid);
    AT(region_slot, start_time);
    AT(region_slot, pid_namespace);
    AT(region_slot, claimed_ns);
    AT(region_slot, use);
    SIZE(region_use);
    AT(region_use, used);
    AT(region_use, pending);
    AT(region_use, overhead);
    AT(region_use, inflight_ns);
}

static void activity(void)
{
    SIZE(activity_row);
    AT(activity_row, magic);
    AT(activity_row, version);
    AT(activity_row, size);
    AT(activity_row, grant);
    AT(activity_row, slot_high);
    AT(activity_row, cores);
    AT(activity_row, soft_cores);
    AT(activity_row, slots);
    SIZE(activity_slot);
}

int main(void)
{
    limits();
    region();
    activity();
    VALUE(LIMITS_VERSION);
    VALUE(LIMITS_MAX_DEVICES);
    VALUE(LIMITS_NO_CORES);
    VALUE(REGION_VERSION);
    VALUE(REGION_SLOTS);
    VALUE(ACTIVITY_VERSION);
    VALUE(ACTIVITY_RING);
    printf("LIMITS_MAGIC %s\n", LIMITS_MAGIC);
    magic("REGION_MAGIC", REGION_MAGIC);
    magic("ACTIVITY_MAGIC", ACTIVITY_MAGIC);
    return 0;
}
