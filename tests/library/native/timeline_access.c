/* The emulated GPU's timeline for a test that loads it with ctypes: what its structure hides from Python. In: a timeline. Out: its numbers. */
#include <stddef.h>

#include "shared/timeline.h"

size_t access_size(void);
uint64_t access_t(const struct timeline *timeline);
uint64_t access_v(const struct timeline *timeline);
uint64_t access_end(const struct timeline *timeline, unsigned slot);
uint64_t access_got(const struct timeline *timeline, unsigned slot);
uint64_t access_busy(const struct timeline *timeline);
uint64_t access_sampled(const struct timeline *timeline, int slot, uint64_t now, unsigned periods);
bool access_extend(struct timeline *timeline, unsigned slot, uint64_t from, uint64_t to);

size_t access_size(void)
{
    return sizeof(struct timeline);
}

uint64_t access_t(const struct timeline *timeline)
{
    return timeline_read(timeline)->t;
}

uint64_t access_v(const struct timeline *timeline)
{
    return timeline_read(timeline)->v;
}

uint64_t access_end(const struct timeline *timeline, unsigned slot)
{
    return atomic_load(&timeline->slots[slot].end) >> 1;
}

uint64_t access_got(const struct timeline *timeline, unsigned slot)
{
    return timeline->slots[slot].got_ns;
}

uint64_t access_busy(const struct timeline *timeline)
{
    return timeline->busy_ns;
}

uint64_t access_sampled(const struct timeline *timeline, int slot, uint64_t now, unsigned periods)
{
    return timeline_busy(timeline, slot < 0 ? NULL : &timeline->slots[slot], now, periods);
}

bool access_extend(struct timeline *timeline, unsigned slot, uint64_t from, uint64_t to)
{
    return timeline_extend(&timeline->slots[slot], from, to);
}
