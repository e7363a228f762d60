/* See virtual.h. */
#include "virtual.h"

#include <stdlib.h>

#include "../context.h"
#include "../session.h"
#include "sharing.h"

static struct spans reservations, objects;
static uint64_t last_handle;

static uint64_t in_units(uint64_t size)
{
    return (size + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
}

CUresult reservation_make(uint64_t size, uint64_t alignment, uint64_t hint, uint64_t *start)
{
    struct reservation *made = size > UINT64_MAX / 2 ? NULL : malloc(sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t taken = in_units(size);
    alignment = alignment < SPACE_UNIT ? SPACE_UNIT : alignment;
    if (hint != 0 && hint % alignment == 0 && space_take_at(hint, taken))
        *start = hint;
    else
        *start = space_take(ZONE_HIGH, taken, alignment);
    if (*start == 0) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct reservation){.span = {.start = *start, .size = size}};
    spans_insert(&reservations, &made->span);
    return CUDA_SUCCESS;
}

struct reservation *reservation_holding(uint64_t address)
{
    return SPAN_OWNER(struct reservation, spans_holding(&reservations, address));
}

CUresult reservation_free(uint64_t start, uint64_t size)
{
    struct reservation *found = reservation_holding(start);
    if (found == NULL || found->span.start != start || found->span.size != size || allocation_overlaps(start, size))
        return CUDA_ERROR_INVALID_VALUE;
    spans_remove(&reservations, &found->span);
    free(found);
    space_give(start, in_units(size));
    return CUDA_SUCCESS;
}

static struct object *object_of(struct physical *physical, const CUmemAllocationProp *properties)
{
    struct object *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (struct object){.span = {.start = ++last_handle, .size = 1}, .physical = physical, .properties = *properties};
    physical->owner = made;
    spans_insert(&objects, &made->span);
    return made;
}

/* The memory of a GPU may be a NUMA node of the machine. */
static int device_at(const CUmemLocation *location)
{
    int numbered = location->id - driver.first_numa;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location->id;
    if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && driver.first_numa >= 0 && device_valid(numbered))
        return numbered;
    return HOST;
}

CUresult object_make(uint64_t size, const CUmemAllocationProp *properties, struct object **out)
{
    struct physical_request request = {.device = device_at(&properties->location), .size = size};
    struct physical *physical = physical_make(&request);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = object_of(physical, properties);
    if (*out == NULL) {
        physical_unmake(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*out)->handles = 1;
    return CUDA_SUCCESS;
}

struct object *object_find(CUmemGenericAllocationHandle handle)
{
    struct object *found = SPAN_OWNER(struct object, spans_holding(&objects, handle));
    return found != NULL && found->handles > 0 ? found : NULL;
}

void object_drop_unused(struct object *object)
{
    if (object->handles > 0 || object->mappings > 0)
        return;
    object->physical->owner = NULL;
    physical_unmake(object->physical);
    spans_remove(&objects, &object->span);
    free(object);
}

void object_release(struct object *object)
{
    object->handles--;
    object_drop_unused(object);
}

CUresult object_import(int fd, struct object **out)
{
    CUmemAllocationProp properties;
    struct physical *physical = sharing_import(fd, &properties);
    if (physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = physical->owner != NULL ? physical->owner : object_of(physical, &properties);
    if (*out == NULL) {
        physical_unmake(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*out)->handles++;
    return CUDA_SUCCESS;
}

CUresult mapping_make(uint64_t start, uint64_t size, struct object *object)
{
    struct reservation *inside = reservation_holding(start);
    if (size > object->physical->span.size || inside == NULL || inside->span.start + inside->span.size - start < size ||
        allocation_overlaps(start, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping = calloc(1, sizeof *mapping);
    struct allocation *made = mapping == NULL ? NULL : allocation_make(ALLOCATION_MAPPING, start, size);
    if (made == NULL) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping->object = object;
    object->mappings++;
    made->physical = object->physical;
    made->device = object->physical->device;
    made->owner = mapping;
    return CUDA_SUCCESS;
}

/* The first of mappings that together are exactly [start, start + size); NULL: there are holes, or one sticks out. */
static struct allocation *exactly(uint64_t start, uint64_t size)
{
    struct allocation *first = allocation_at(start);
    for (uint64_t at = start, end = start + size; at < end;) {
        struct allocation *found = allocation_at(at);
        if (found == NULL || found->kind != ALLOCATION_MAPPING || found->span.size > end - at)
            return NULL;
        at += found->span.size;
    }
    return first;
}

static void remove_one(struct allocation *allocation)
{
    struct mapping *mapping = allocation->owner;
    if (mapping->exposed)
        space_hide(allocation->span.start, allocation->span.size);
    mapping->object->mappings--;
    object_drop_unused(mapping->object);
    free(mapping);
    allocation_drop(allocation);
}

CUresult mapping_remove(uint64_t start, uint64_t size)
{
    if (size == 0 || exactly(start, size) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = start; at < start + size;) {
        struct allocation *found = allocation_at(at);
        at += found->span.size;
        remove_one(found);
    }
    return CUDA_SUCCESS;
}

static CUresult allow_host(struct allocation *allocation, unsigned flags)
{
    struct mapping *mapping = allocation->owner;
    if (allocation->device != HOST)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && !mapping->exposed) {
        int fd = sharing_file(allocation->physical);
        if (fd < 0 || !space_expose_file(allocation->span.start, allocation->span.size, fd))
            return CUDA_ERROR_OUT_OF_MEMORY;
        mapping->exposed = true;
    } else if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && mapping->exposed) {
        space_hide(allocation->span.start, allocation->span.size);
        mapping->exposed = false;
    }
    mapping->host_access = (uint8_t)flags;
    return CUDA_SUCCESS;
}

static CUresult allow_one(struct allocation *allocation, const CUmemAccessDesc *access)
{
    struct mapping *mapping = allocation->owner;
    if (access->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        mapping->access[access->location.id] = (uint8_t)access->flags;
    else if (allow_host(allocation, access->flags) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    bool reachable = mapping->host_access != 0;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        reachable |= mapping->access[i] != 0;
    allocation->content = reachable ? physical_content(allocation->physical) : NULL;
    return CUDA_SUCCESS;
}

CUresult mapping_allow(uint64_t start, uint64_t size, const CUmemAccessDesc *access, size_t count)
{
    if (size == 0 || exactly(start, size) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = start; at < start + size;) {
        struct allocation *found = allocation_at(at);
        for (size_t i = 0; i < count; i++) {
            CUresult result = allow_one(found, &access[i]);
            if (result != CUDA_SUCCESS)
                return result;
        }
        at += found->span.size;
    }
    return CUDA_SUCCESS;
}

struct mapping *mapping_holding(uint64_t address)
{
    struct allocation *found = allocation_holding(address);
    return found != NULL && found->kind == ALLOCATION_MAPPING ? found->owner : NULL;
}
