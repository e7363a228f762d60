/*
 * Physical memory that cuMemCreate made, and who still holds it: handles and mappings.
 *
 * In: what the application created, imported, exported, retained, mapped and unmapped, each after the driver agreed, and what it releases, before and
 * after. Out: how many bytes of which device are free now. Not here: driver calls, the ledger, descriptors (exports.h), locks (one caller at a time).
 * Invariants: memory counts until its last handle is released and its last mapping is gone, in whatever order; exported memory counts on until
 * nobody else can reach it either (backing_settle). Imported memory counts where the process that exported it does not count it: it is no
 * process of the container, or dead. A handle's number may come back for other memory while the old memory is still mapped, or as soon as the
 * driver has released it.
 */
#ifndef VCUDA_MEMORY_BACKING_H
#define VCUDA_MEMORY_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "exports.h"
#include "interposer/state/state.h"

enum backing_origin {
    BACKING_CREATED,
    BACKING_OWN,            /* imported, exported by this process: counted as what it created */
    BACKING_BORROWED,       /* exported by another process of the container, which counts it while it lives */
    BACKING_FOREIGN,        /* nobody in the container counted it */
};

/* Memory that nobody holds any more: bytes of a device to give back, or somebody's to return. */
struct backing_loss {
    unsigned device;
    uint64_t bytes;
    const struct vcuda_lender *lender;      /* of borrowed memory, or NULL */
};
typedef void backing_freed(const struct backing_loss *loss);

/* False: no host memory to remember it. An address range of size 0 is never mapped. */
bool backing_created(uint64_t handle, unsigned device, uint64_t bytes);

/* `bytes` of foreign memory, which is charged already; the lender of borrowed memory. */
struct backing_import {
    enum backing_origin origin;
    unsigned device;
    uint64_t bytes;
    struct vcuda_lender lender;
};
enum backing_imported {
    BACKING_NEW,
    BACKING_KNOWN,          /* the handle stands for memory that is known already: the import is as nothing */
    BACKING_NO_MEMORY,      /* of the host, to remember it */
};
bool backing_knows(uint64_t handle);
enum backing_imported backing_imported(uint64_t handle, const struct backing_import *import);

/*
 * Around the driver's export of a handle: `end` exactly after a `begin` that was not NULL. `owner` says who counts the memory. A descriptor of
 * -1 is one that cannot be watched, or another way by which the memory can be reached.
 */
struct memory;
struct memory *backing_export_begin(uint64_t handle, uint32_t *owner);
struct memory *backing_export_begin_at(uint64_t address, uint32_t *owner);
void backing_export_end(struct memory *memory, bool agreed, int descriptor, uint32_t owner, backing_freed *freed);

/* The same of a fabric handle; and one whose memory nobody holds here, to be asked about: its number, or 0. `end`: there is nothing behind it. */
void backing_export_fabric(struct memory *memory, bool agreed, const void *handle, backing_freed *freed);
struct memory *backing_fabric_begin(unsigned char handle[static EXPORTS_FABRIC], uint64_t now_ns);
void backing_fabric_end(struct memory *memory);

/* Something that this program exported may be held yet. One that ran in this process before exec exported what nobody counts now. */
bool backing_has_exports(void);

/* Exported memory that nobody here holds, and nobody elsewhere any more. Not while another process has imported something of ours. */
void backing_settle(backing_freed *freed);

/* Borrowed memory whose lender is dead: to be counted here, `end` exactly after a `begin` that was not NULL. A handle of it, 0 where none is left. */
typedef bool backing_ended(const struct vcuda_lender *lender);
struct memory *backing_orphan_begin(backing_ended *ended, uint64_t *handle, uint64_t *mapped);
/* 0 bytes: its size could not be found. */
void backing_orphan_end(struct memory *memory, uint64_t bytes, backing_freed *freed);

unsigned backing_device(const struct memory *memory);

/* What counts on a device and is not among what NVML says of this process: somebody else owns it. For any thread. */
uint64_t backing_apart(unsigned device);
/* The driver gave out `handle` for what is mapped at `address`: a number that is known or a new one. */
bool backing_retained(uint64_t handle, uint64_t address);

/* What a handle stands for, kept through a call of the driver that names it. NULL: not ours. `end` exactly after a `begin` that was not NULL. */
struct memory *backing_release_begin(uint64_t handle);
void backing_release_end(struct memory *memory, uint64_t handle, bool released, backing_freed *freed);
struct memory *backing_map_begin(uint64_t handle);
/* False: it was mapped, there is no host memory to remember it, and it has to be unmapped. */
bool backing_map_end(struct memory *memory, uint64_t address, uint64_t size, bool mapped, backing_freed *freed);
void backing_unmapped(uint64_t address, uint64_t size, backing_freed *freed);

/* Parts of a sparse array: where, and how far. `kind` tells mip tails and levels apart. */
struct backing_part {
    const void *array;
    unsigned kind, level, layer;
    uint64_t at[3], extent[3];
};
/* After the driver agreed, and instead of backing_map_end: memory stays behind the part. `owner`: with whom the array ends. */
bool backing_part_mapped(struct memory *memory, const struct backing_part *part, const void *owner);
/* Everything that lies within the part. */
void backing_part_unmapped(const struct backing_part *part, backing_freed *freed);
/* The array was destroyed; the owner is gone. */
void backing_array_gone(const void *array, backing_freed *freed);
void backing_owner_gone(const void *owner, backing_freed *freed);

/* In a child after fork. */
void backing_forget(void);

#endif
