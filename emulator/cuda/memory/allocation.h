/*
 * What an application has allocated or registered: one record for each, found by any address inside it.
 *
 * In: records of the families of this directory. Out: the record of an address, and the bytes behind a range of addresses. Not
 * here: physical memory. Everything under memory_lock(). Invariant: records do not overlap; a record's `content` is where its first
 * byte lies, NULL where nothing is there now (graph memory between launches).
 */
#ifndef VCUDA_EMULATOR_ALLOCATION_H
#define VCUDA_EMULATOR_ALLOCATION_H

#include <cuda.h>
#include <stdbool.h>

#include "arena.h"

enum allocation_kind {
    ALLOCATION_LINEAR,
    ALLOCATION_MANAGED,
    ALLOCATION_HOST,            /* page-locked, allocated here */
    ALLOCATION_REGISTERED,      /* page-locked, the application's */
    ALLOCATION_ARRAY,           /* only its handle knows its address */
    ALLOCATION_POOLED,
    ALLOCATION_GRAPH,
    ALLOCATION_MAPPING,         /* of virtual memory */
    ALLOCATION_OPENED,          /* another process's, by IPC handle */
    ALLOCATION_IMPORTED,        /* another process's, out of a shared pool */
};

struct allocation {
    struct span span;           /* the bytes asked for */
    enum allocation_kind kind;
    int device;                 /* HOST for host memory outside of pools */
    unsigned flags;
    CUcontext context;          /* NULL: belongs to the device */
    uint64_t id;                /* never used again in this process */
    struct physical *physical;
    char *content;
    struct arena *arena;        /* that it came out of; NULL: `physical` is its own */
    void *owner;                /* of its family: pool, mapping, opened handle */
    bool sync_memops;
};

struct allocation *allocation_make(enum allocation_kind kind, uint64_t start, uint64_t size);   /* NULL: no memory for the record */
void allocation_drop(struct allocation *allocation);        /* the record alone */
struct allocation *allocation_holding(uint64_t address);    /* NULL: in no allocation */
struct allocation *allocation_at(uint64_t address);         /* that begins there */
bool allocation_overlaps(uint64_t start, uint64_t size);
/* Calls `visit` for each; it may drop the record that it is given. */
void allocation_each(void (*visit)(struct allocation *, void *), void *with);

/* Bytes from an address on that lie in a row. */
struct stretch {
    char *bytes;
    uint64_t size;
    bool host;                  /* not in a GPU's memory */
    int device;
};

/*
 * `pageable`: an address that is in no record is the application's own memory. `written`: how many bytes are about to be written there.
 * False: an address that nothing lies behind.
 */
bool allocation_stretch(uint64_t address, bool pageable, uint64_t written, struct stretch *out);
/*
 * Whether [address, address + size) can be copied from or to, now or, where `planned`, when the graph is launched that the copy is
 * a part of: memory of graphs is there only then. What begins at `address` in *first, without its bytes where they are yet to come.
 */
bool allocation_covers(uint64_t address, uint64_t size, bool pageable, bool planned, struct stretch *first);

#endif
