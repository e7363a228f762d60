/* See copy.h. Addresses are looked up under the lock, bytes move outside of it. */
#include "copy.h"

#include <string.h>

#include "allocation.h"
#include "sharing.h"

static enum copy_route route_between(const struct stretch *target, const struct stretch *source)
{
    if (target->host || source->host)
        return COPY_HOST_DEVICE;
    return target->device == source->device ? COPY_ON_DEVICE : COPY_PEER;
}

CUresult transfer_check(const struct transfer *transfer, enum copy_route *route)
{
    struct stretch target, source;
    unsigned flags = transfer->flags;
    memory_lock();
    bool found = allocation_covers(transfer->target, transfer->bytes, flags & TARGET_PAGEABLE, flags & PLANNED, &target) &&
                 allocation_covers(transfer->source, transfer->bytes, flags & SOURCE_PAGEABLE, flags & PLANNED, &source);
    memory_unlock();
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    *route = route_between(&target, &source);
    return CUDA_SUCCESS;
}

static uint64_t least(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

void transfer_perform(const struct transfer *transfer)
{
    struct stretch target, source;
    uint64_t size;
    for (uint64_t done = 0; done < transfer->bytes; done += size) {
        uint64_t rest = transfer->bytes - done;
        memory_lock();
        bool found = allocation_stretch(transfer->source + done, transfer->flags & SOURCE_PAGEABLE, 0, &source);
        uint64_t most = found ? least(rest, source.size, rest) : 0;
        found = found && allocation_stretch(transfer->target + done, transfer->flags & TARGET_PAGEABLE, most, &target);
        memory_unlock();
        if (!found)
            return; /* freed since it was checked, by another thread */
        size = least(rest, target.size, source.size);
        sharing_use_begin();
        memmove(target.bytes, source.bytes, size);
        sharing_use_end();
    }
}

CUresult memory_fill_check(uint64_t target, unsigned size, uint64_t count, bool planned)
{
    struct stretch first;
    if (target % size != 0 || count > UINT64_MAX / size)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    bool found = count == 0 || allocation_covers(target, size * count, false, planned, &first);
    memory_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void fill(char *bytes, uint32_t value, unsigned size, uint64_t length)
{
    unsigned char pattern[4];
    bool even = true;
    for (unsigned i = 0; i < size; i++) {
        pattern[i] = (unsigned char)(value >> 8 * i);
        even &= pattern[i] == pattern[0];
    }
    if (even) {
        memset(bytes, pattern[0], length);
        return;
    }
    for (uint64_t at = 0; at < length; at += size)
        memcpy(bytes + at, pattern, size);
}

void memory_fill(uint64_t target, uint32_t value, unsigned size, uint64_t count)
{
    struct stretch at;
    uint64_t length, bytes = size * count;
    for (uint64_t done = 0; done < bytes; done += length) {
        memory_lock();
        bool found = allocation_stretch(target + done, false, bytes - done, &at);
        memory_unlock();
        if (!found)
            return;
        length = at.size < bytes - done ? at.size : bytes - done;
        sharing_use_begin();
        fill(at.bytes, value, size, length);
        sharing_use_end();
    }
}
