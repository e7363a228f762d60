/* See space.h. Two zones, each made when first asked for; a fork's child does not inherit them, as it does not inherit CUDA. */
#include "space.h"

#include <sys/mman.h>

#include "ranges.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0
#endif

struct zone {
    uint64_t start, size;
    uint64_t distance;  /* from a pointer to its content */
    struct ranges free;
};

static struct zone zones[2];

enum { PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static const struct bounds anywhere = {0, UINT64_MAX};

static void *reserve(uint64_t hint, uint64_t size, int protection)
{
    void *found = mmap((void *)(uintptr_t)hint, size, protection, PRIVATE | (hint != 0 ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    if (hint != 0 && (uintptr_t)found != hint) { /* a kernel without this flag treats the address as a hint */
        munmap(found, size);
        return NULL;
    }
    madvise(found, size, MADV_DONTFORK);
    madvise(found, size, MADV_DONTDUMP);
    return found;
}

static bool make_zone(struct zone *zone, uint64_t hint, uint64_t size)
{
    void *pointers = reserve(hint, size, PROT_NONE);
    void *content = pointers == NULL ? NULL : reserve(0, size, PROT_READ | PROT_WRITE);
    if (content == NULL) {
        if (pointers != NULL)
            munmap(pointers, size);
        return false;
    }
    uint64_t start = ((uintptr_t)pointers + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
    zone->distance = (uintptr_t)content - (uintptr_t)pointers;
    zone->size = ((uintptr_t)pointers + size - start) / SPACE_UNIT * SPACE_UNIT;
    zone->start = start;
    ranges_give(&zone->free, start, zone->size, anywhere);
    return true;
}

/* As much as the process may have: sanitizers and limits on address space leave less. */
static void make_high_zone(void)
{
    for (uint64_t size = UINT64_C(16) << 40; size >= UINT64_C(1) << 30 && !make_zone(&zones[ZONE_HIGH], 0, size); size /= 4)
        continue;
}

static void make_low_zone(void)
{
    enum { FIRST = 0x10000000, LAST = 0x70000000, STEP = 0x4000000, SIZE = 0x40000000 };
    for (uint64_t hint = FIRST; hint <= LAST && !make_zone(&zones[ZONE_LOW], hint, SIZE); hint += STEP)
        continue;
}

static struct zone *zone_of(uint64_t address)
{
    for (unsigned i = 0; i < 2; i++) {
        if (address - zones[i].start < zones[i].size)
            return &zones[i];
    }
    return NULL;
}

uint64_t space_take(enum space_zone zone, uint64_t size, uint64_t alignment)
{
    uint64_t start;
    if (zones[zone].size == 0)
        (zone == ZONE_HIGH ? make_high_zone : make_low_zone)();
    return ranges_take(&zones[zone].free, size, alignment, &start) ? start : 0;
}

bool space_take_at(uint64_t address, uint64_t size)
{
    struct zone *zone = zone_of(address);
    return zone != NULL && ranges_take_at(&zone->free, address, size);
}

void space_give(uint64_t address, uint64_t size)
{
    ranges_give(&zone_of(address)->free, address, size, anywhere);
}

bool space_holds(uint64_t address)
{
    return zone_of(address) != NULL;
}

void *space_content(uint64_t address)
{
    return (void *)(uintptr_t)(address + zone_of(address)->distance);
}

static bool replace(uint64_t at, uint64_t size, int protection, int flags, int fd)
{
    void *place = (void *)(uintptr_t)at;
    if (mmap(place, size, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
        return false;
    madvise(place, size, MADV_DONTFORK);
    madvise(place, size, MADV_DONTDUMP);
    return true;
}

bool space_expose(uint64_t address, uint64_t size)
{
    return mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) == 0;
}

bool space_expose_file(uint64_t address, uint64_t size, int fd)
{
    return replace(address, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

void space_hide(uint64_t address, uint64_t size)
{
    replace(address, size, PROT_NONE, PRIVATE, -1);
}

bool space_map_file(uint64_t address, uint64_t size, int fd)
{
    return replace((uintptr_t)space_content(address), size, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

void space_unmap_file(uint64_t address, uint64_t size)
{
    replace((uintptr_t)space_content(address), size, PROT_READ | PROT_WRITE, PRIVATE, -1);
}

void space_discard(uint64_t address, uint64_t size)
{
    enum { PAGE = 65536 }; /* no page of any machine is larger, and a unit of space is a multiple of it */
    uint64_t from = (uintptr_t)space_content(address), to = (from + size + PAGE - 1) / PAGE * PAGE;
    from = from / PAGE * PAGE;
    madvise((void *)(uintptr_t)from, to - from, MADV_DONTNEED);
}
