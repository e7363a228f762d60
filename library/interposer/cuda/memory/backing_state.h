/* What backing.c and backing_shared.c know of each other. */
#ifndef VCUDA_MEMORY_BACKING_STATE_H
#define VCUDA_MEMORY_BACKING_STATE_H

#include "backing.h"

/* One piece of physical memory; in the store's list of free ones when nobody holds it. */
struct memory {
    uint64_t bytes;         /* 0: not ours to count */
    unsigned device;
    unsigned handles, mappings;
    unsigned calls;         /* of the driver under way */
    enum backing_origin origin;
    uint64_t mapped;        /* the most that a mapping showed of it */
    struct vcuda_lender lender;
    struct export *export;  /* NULL: it never was */
    struct memory *next;    /* free ones; exported ones that nobody here holds */
    struct memory *next_borrowed;
};

/* backing.c: any handle that stands for it, or 0; nobody holds it any more. */
uint64_t backing_handle_of(const struct memory *memory);
void backing_drop_unheld(struct memory *memory, backing_freed *freed);
void backing_recycle(struct memory *memory);

/* backing_shared.c: it was imported; nobody here holds it: true where it counts on; it is lost. */
void backing_note_import(struct memory *memory, const struct backing_import *import);
bool backing_is_kept(struct memory *memory);
void backing_lose(struct memory *memory, backing_freed *freed);
void backing_forget_shared(void);

#endif
