/* Backing that other processes or descriptors hold too; see backing.h. */
#include <stddef.h>
#include <unistd.h>

#include "backing_state.h"

static struct memory *lent;         /* exported, and held by nobody here */
static struct memory *borrowed;
static unsigned exported;           /* pieces that were, and may be held yet */
static unsigned own_imports;        /* pieces of BACKING_OWN: which of what was exported each is, nobody knows */
static _Atomic uint64_t apart[LIMITS_MAX_DEVICES];

uint64_t backing_apart(unsigned device)
{
    return atomic_load_explicit(&apart[device], memory_order_relaxed);
}

bool backing_has_exports(void)
{
    return exported != 0;
}

unsigned backing_device(const struct memory *memory)
{
    return memory->device;
}

void backing_note_import(struct memory *memory, const struct backing_import *import)
{
    memory->origin = import->origin;
    memory->lender = import->lender;
    if (import->origin == BACKING_OWN)
        own_imports++;
    if (import->origin == BACKING_FOREIGN)
        atomic_fetch_add(&apart[memory->device], memory->bytes);
    if (import->origin == BACKING_BORROWED) {
        memory->next_borrowed = borrowed;
        borrowed = memory;
    }
}

/* ---- exports ---- */

static void export_end(struct memory *memory, bool agreed, struct export *export, backing_freed *freed)
{
    if (agreed && export == NULL)
        return;             /* what could not be recorded stays charged: the call never ends */
    if (agreed) {
        exported += memory->export == NULL;
        memory->export = export;
    }
    memory->calls--;
    backing_drop_unheld(memory, freed);
}

void backing_export_end(struct memory *memory, bool agreed, int descriptor, uint32_t owner, backing_freed *freed)
{
    struct export *export = NULL;

    if (agreed)
        export = descriptor >= 0 ? exports_mark(memory->export, descriptor, owner) : exports_mark_endless(memory->export);
    export_end(memory, agreed, export, freed);
}

void backing_export_fabric(struct memory *memory, bool agreed, const void *handle, backing_freed *freed)
{
    export_end(memory, agreed, agreed ? exports_mark_fabric(memory->export, handle) : NULL, freed);
}

/* It stays where it is meanwhile: what is asked about counts as held. */
struct memory *backing_fabric_begin(unsigned char handle[static EXPORTS_FABRIC], uint64_t now_ns)
{
    struct memory *memory = lent;

    while (memory != NULL && !exports_ask_fabric(memory->export, handle, now_ns))
        memory = memory->next;
    return memory;
}

void backing_fabric_end(struct memory *memory)
{
    exports_fabric_ended(memory->export);
}

bool backing_is_kept(struct memory *memory)
{
    if (memory->export == NULL || memory->origin == BACKING_BORROWED)
        return false;
    if (memory->origin != BACKING_FOREIGN)
        atomic_fetch_add(&apart[memory->device], memory->bytes);
    memory->next = lent;
    lent = memory;
    return true;
}

static bool is_lost(const struct memory *memory)
{
    return (memory->origin == BACKING_OWN || own_imports == 0) && !exports_is_open(memory->export);
}

void backing_settle(backing_freed *freed)
{
    for (struct memory **at = &lent; *at != NULL;) {
        struct memory *memory = *at;
        if (!is_lost(memory)) {
            at = &memory->next;
            continue;
        }
        *at = memory->next;
        if (memory->origin != BACKING_FOREIGN)
            atomic_fetch_sub(&apart[memory->device], memory->bytes);
        backing_lose(memory, freed);
    }
}

/* ---- the end ---- */

static void unlink_borrowed(const struct memory *memory)
{
    for (struct memory **at = &borrowed; *at != NULL; at = &(*at)->next_borrowed) {
        if (*at == memory) {
            *at = memory->next_borrowed;
            return;
        }
    }
}

void backing_lose(struct memory *memory, backing_freed *freed)
{
    bool is_borrowed = memory->origin == BACKING_BORROWED;
    struct backing_loss loss = {memory->device, memory->bytes, is_borrowed ? &memory->lender : NULL};

    if (is_borrowed)
        unlink_borrowed(memory);
    if (memory->origin == BACKING_OWN)
        own_imports--;
    if (memory->origin == BACKING_FOREIGN)
        atomic_fetch_sub(&apart[memory->device], memory->bytes);
    exported -= memory->export != NULL;
    exports_drop(memory->export);
    if (freed != NULL && (is_borrowed || memory->bytes != 0))
        freed(&loss);
    backing_recycle(memory);
}

/* ---- what a dead lender leaves ---- */

struct memory *backing_orphan_begin(backing_ended *ended, uint64_t *handle, uint64_t *mapped)
{
    struct memory *memory = borrowed;

    while (memory != NULL && (memory->calls != 0 || !ended(&memory->lender)))
        memory = memory->next_borrowed;
    if (memory == NULL)
        return NULL;
    memory->calls++;
    *handle = backing_handle_of(memory);
    *mapped = memory->mapped;
    return memory;
}

void backing_orphan_end(struct memory *memory, uint64_t bytes, backing_freed *freed)
{
    struct backing_loss returned = {.device = memory->device, .lender = &memory->lender};

    memory->calls--;
    if (bytes != 0) {
        unlink_borrowed(memory);
        memory->origin = BACKING_FOREIGN;
        memory->bytes = bytes;
        atomic_fetch_add(&apart[memory->device], bytes);
        freed(&returned);
    }
    backing_drop_unheld(memory, freed);
}

void backing_forget_shared(void)
{
    lent = borrowed = NULL;
    exported = own_imports = 0;
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&apart[i], 0);
    exports_forget();
}
