/* A word of device memory or of memory that a device can reach, as operations of streams use it; see memory.h. */
#include <stdatomic.h>

#include "../memory.h"
#include "allocation.h"
#include "sharing.h"

/* The application's processor may read or write host memory at the same time. */
static void exchange_word(char *bytes, unsigned size, bool write, uint64_t *value)
{
    if (size == sizeof(uint32_t)) {
        _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)bytes;
        if (write)
            atomic_store(word, (uint32_t)*value);
        else
            *value = atomic_load(word);
    } else if (write) {
        atomic_store((_Atomic uint64_t *)(void *)bytes, *value);
    } else {
        *value = atomic_load((_Atomic uint64_t *)(void *)bytes);
    }
}

bool memory_word(CUdeviceptr address, unsigned size, bool write, uint64_t *value)
{
    struct stretch at;
    memory_lock();
    bool found = address % size == 0 && allocation_stretch(address, false, write ? size : 0, &at) && at.size >= size;
    if (found) {
        sharing_use_begin();
        exchange_word(at.bytes, size, write, value);
        sharing_use_end();
    }
    memory_unlock();
    return found;
}
