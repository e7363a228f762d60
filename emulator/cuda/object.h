/*
 * What a handle points to: objects that can be distinguished from each other and from ended ones.
 *
 * In: a kind. Out: zeroed memory that begins with a `struct object`. An ended object's memory is only used again for its own kind, so a stale handle is seen
 * to be one, and a handle of another kind (a CUkernel passed as a CUfunction) is seen to be that. Not here: who may use it.
 */
#ifndef VCUDA_EMULATOR_OBJECT_H
#define VCUDA_EMULATOR_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum object_kind {
    OBJECT_CONTEXT = 1,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_FUNCTION,
    OBJECT_KERNEL,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXEC,
    OBJECT_GREEN,
    OBJECT_KINDS,
};

struct object {
    uint32_t mark;
    uint32_t kind;
    struct object *next_ended;
};

#define OBJECT_MARK UINT32_C(0x56435544)

/* A call came with the handle of a stream, event or context that has ended, which a driver may not survive: counted, for tests
 * (vcuda_emulator_stale_handles). */
extern _Atomic uint64_t stale_handles;

/* NULL: no memory. Every kind has one size. */
void *object_begin(enum object_kind kind, size_t size);
void object_end(void *object);

static inline bool object_is(const void *handle, enum object_kind kind)
{
    const struct object *object = handle;
    return (uintptr_t)handle > 4096 && (uintptr_t)handle % 16 == 0 && object->mark == OBJECT_MARK && object->kind == (uint32_t)kind;
}

#endif
