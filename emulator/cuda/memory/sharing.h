/*
 * Physical memory that several processes see: its content lies in a file.
 *
 * Two ways, as the real driver has two. By name: IPC handles and pointers out of shared pools name a file in a directory beside the
 * state, which all processes with this state can open. By descriptor: an exported VMM handle is the file itself, handed over by the
 * application; it carries its identity. A piece of memory becomes shared when that is first asked for, without changing its
 * address. The one who made it pays for it. Locks that the kernel drops with their holders say which processes live: an exporter
 * holds one on a named file, whose name any process removes once it is gone; each importer of a descriptor, and every descriptor given
 * out, holds one, so that memory outlives its last handle here as long as it can be reached. Not here: which allocation lies in the
 * piece. Everything under memory_lock() but sharing_use(). Invariant: nothing that was written is lost when a piece becomes shared:
 * no bytes move meanwhile (sharing_use_*).
 */
#ifndef VCUDA_EMULATOR_SHARING_H
#define VCUDA_EMULATOR_SHARING_H

#include <cuda.h>

#include "physical.h"

/* Names a file of another process; fits into an IPC handle with room for an offset. */
struct shared_name {
    uint64_t maker, number;     /* of the process that made it: random; and its count */
    uint64_t size;
    uint32_t slot;              /* of the GPU on the machine: ordinals are each process's own */
    uint32_t spare;
};

/* False: the directory cannot be written, or no memory. */
bool sharing_by_name(struct physical *physical, struct shared_name *name);
/* NULL: no such file, its maker is gone, or this process does not see the GPU. */
struct physical *sharing_open_name(const struct shared_name *name);
bool sharing_is_own(const struct shared_name *name);

/* A new descriptor of the caller's; -1: none to be had. */
int sharing_export(struct physical *physical, const CUmemAllocationProp *properties);
/* NULL: not a descriptor of the emulator. The piece may be one that this process knows already. */
struct physical *sharing_import(int fd, CUmemAllocationProp *properties);

/* The file of a piece, made where there is none: for a second mapping in this process. -1: none to be had. */
int sharing_file(struct physical *physical);

void sharing_end(struct physical *physical);

/* Around everything that moves bytes. */
void sharing_use_begin(void);
void sharing_use_end(void);

#endif
