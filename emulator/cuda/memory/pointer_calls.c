/*
 * Entry points that tell what a pointer is: cuPointerGetAttribute and cuPointerGetAttributes.
 *
 * In: any address. Out: attributes of the allocation that it lies in. For an address in no allocation the first says
 * CUDA_ERROR_INVALID_VALUE, the second fills in zeros and succeeds, as documented. Invariant: an attribute is written as a whole or
 * not at all.
 */
#include <string.h>

#include "../context.h"
#include "../entry.h"
#include "pool.h"
#include "virtual.h"

/* One attribute's value before it goes to the application: a word whose first `size` bytes count. */
struct value {
    uint64_t word;
    size_t size;
};

static struct value of_int(int64_t value)
{
    return (struct value){(uint64_t)value, sizeof(int)};
}

static struct value of_word(uint64_t value)
{
    return (struct value){value, sizeof(uint64_t)};
}

/* An array's memory has no address, and a reservation without a mapping has no memory. */
static const struct allocation *find(CUdeviceptr pointer)
{
    const struct allocation *found = allocation_holding(pointer);
    return found != NULL && found->kind == ALLOCATION_ARRAY ? NULL : found;
}

static bool host_reaches(const struct allocation *of)
{
    const struct mapping *mapping = of->kind == ALLOCATION_MAPPING ? of->owner : NULL;
    return of->kind == ALLOCATION_MANAGED || (mapping == NULL ? of->device == HOST : mapping->exposed);
}

/* Attributes of a range of addresses, whether or not something is mapped there. */
static bool range_value(CUpointer_attribute attribute, CUdeviceptr pointer, struct value *out)
{
    const struct reservation *reserved = reservation_holding(pointer);
    const struct allocation *found = find(pointer);
    const struct span *range = reserved != NULL ? &reserved->span : found != NULL ? &found->span : NULL;
    if (range == NULL)
        return false;
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPED)
        *out = of_int(found != NULL);
    else
        *out = of_word(attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? range->start : range->size);
    return true;
}

static int handle_types(const struct allocation *of)
{
    if (of->kind == ALLOCATION_MAPPING)
        return (int)((const struct mapping *)of->owner)->object->properties.requestedHandleTypes;
    return of->kind == ALLOCATION_POOLED ? (int)((const struct pool *)of->owner)->properties.handleTypes : 0;
}

static int access_of(const struct allocation *of)
{
    struct context *here = context_current();
    if (of->kind == ALLOCATION_MAPPING)
        return here == NULL ? 0 : ((const struct mapping *)of->owner)->access[context_device(here)];
    if (of->kind == ALLOCATION_POOLED && here != NULL)
        return ((const struct pool *)of->owner)->access[context_device(here)];
    return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static bool value_of(const struct allocation *of, CUpointer_attribute attribute, CUdeviceptr pointer, struct value *out)
{
    bool on_host = of->device == HOST;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *out = of_word((uintptr_t)of->context);
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *out = of_int(on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *out = of_word(pointer);
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *out = of_word(host_reaches(of) ? pointer : 0);
        return host_reaches(of);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *out = of_int(of->sync_memops);
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *out = of_word(of->id);
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *out = of_int(of->kind == ALLOCATION_MANAGED);
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *out = of_int(on_host && context_current() != NULL ? context_device(context_current()) : of->device);
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *out = of_int(of->kind == ALLOCATION_LINEAR);
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *out = of_word((uint64_t)handle_types(of));
        return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *out = of_int(0);
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *out = of_int(access_of(of));
        return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *out = of_word(of->kind == ALLOCATION_POOLED ? (uintptr_t)of->owner : 0);
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *out = of_word(of->span.size);
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *out = of_word(of->span.start);
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *out = of_word(of->physical == NULL ? 0 : of->physical->id);
        return true;
    default:
        return false;
    }
}

static bool is_range(CUpointer_attribute attribute)
{
    return attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
           attribute == CU_POINTER_ATTRIBUTE_MAPPED;
}

/* The size is right even where there is no value, so that a zero can be put there. */
static bool look_up(CUpointer_attribute attribute, CUdeviceptr pointer, struct value *out)
{
    static const struct allocation nobody = {.device = -2};
    const struct allocation *found = find(pointer);
    *out = (struct value){0, 0};
    if (is_range(attribute)) {
        bool there = range_value(attribute, pointer, out);
        if (!there)
            *out = attribute == CU_POINTER_ATTRIBUTE_MAPPED ? of_int(0) : of_word(0);
        return there;
    }
    if (found != NULL)
        return value_of(found, attribute, pointer, out);
    value_of(&nobody, attribute, pointer, out);
    out->word = attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)CU_DEVICE_INVALID : 0;
    return false;
}

ENTRY(cuPointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    struct value value;
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        return CUDA_ERROR_NOT_SUPPORTED;
    memory_lock();
    bool found = look_up(attribute, pointer, &value);
    memory_unlock();
    if (found)
        memcpy(data, &value.word, value.size); /* little endian: the low bytes are the int */
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuPointerGetAttributes)(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer)
{
    struct context *context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (count == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct value value;
        look_up(attributes[i], pointer, &value);
        if (value.size == 0 || data[i] == NULL)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            memcpy(data[i], &value.word, value.size);
    }
    memory_unlock();
    return result;
}
