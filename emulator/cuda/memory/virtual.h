/*
 * Virtual memory management: address reservations, memory objects behind handles, mappings of the one in the other.
 *
 * In: what the entry points in virtual_calls.c have checked. Out: results. An object lives until the last of its handles and
 * mappings is gone, and until no other process reaches an exported one (sharing.h); only then does the GPU have its memory back. Under
 * memory_lock(). Invariant: a mapping covers whole units of one reservation that nothing else covers.
 */
#ifndef VCUDA_EMULATOR_VIRTUAL_H
#define VCUDA_EMULATOR_VIRTUAL_H

#include "../../shared/layout.h"
#include "allocation.h"

struct reservation {
    struct span span;           /* as asked for; the addresses taken are rounded up to SPACE_UNIT */
};

struct object {
    struct span span;           /* start: the handle's value */
    struct physical *physical;
    CUmemAllocationProp properties;
    uint32_t handles, mappings;
};

struct mapping {
    struct object *object;
    uint8_t access[MAX_GPUS];   /* CUmemAccess_flags of each device */
    uint8_t host_access;
    bool exposed;
};

CUresult reservation_make(uint64_t size, uint64_t alignment, uint64_t hint, uint64_t *start);
CUresult reservation_free(uint64_t start, uint64_t size);
struct reservation *reservation_holding(uint64_t address);

CUresult object_make(uint64_t size, const CUmemAllocationProp *properties, struct object **out);
struct object *object_find(CUmemGenericAllocationHandle handle);     /* NULL: no such handle */
void object_release(struct object *object);
void object_drop_unused(struct object *object);
CUresult object_import(int fd, struct object **out);

CUresult mapping_make(uint64_t start, uint64_t size, struct object *object);
CUresult mapping_remove(uint64_t start, uint64_t size);
CUresult mapping_allow(uint64_t start, uint64_t size, const CUmemAccessDesc *access, size_t count);
struct mapping *mapping_holding(uint64_t address);

#endif
