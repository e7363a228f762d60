/* What the files of state/ know of each other; not exported. */
#ifndef VCUDA_STATE_INTERNAL_H
#define VCUDA_STATE_INTERNAL_H

#include "state.h"

/* paths.c: the base directory, found by limits.c when the process attaches; "" where there is none. */
void paths_find(void);
const char *paths_base(void);

/* limits_file.c: a file's limits, or why not, in words that follow the file's name. ENOENT is told apart by `missing`. */
enum { LIMITS_REASON = 128 };
struct limits_outcome {
    bool missing;
    bool unread;                    /* it is there, and could not be read: another try may */
    char reason[LIMITS_REASON];     /* "" when read */
};
uint64_t limits_checksum(const char *bytes, size_t size);
struct limits_outcome limits_parse(const char *bytes, size_t size, struct limits_view *view);
struct limits_outcome limits_parse_legacy(const char *bytes, size_t size, struct limits_view *view);
struct limits_outcome limits_read_file(const char *path, struct limits_view *view);
struct limits_outcome limits_read_legacy(const char *path, struct limits_view *view);

/* region.c: a descriptor of the file that is mapped, or -1. The file is mapped now, which could not be opened or mapped before. It can be used. */
int region_open(void);
bool region_open_again(void);
bool region_is_usable(void);

/* slot.c */
void slot_clear(struct region_slot *slot);              /* what it counts, not whose it is */
uint64_t slot_namespace(void);                          /* our pid namespace */
uint32_t slot_high(const struct region *region);
bool slot_is_outside(void);                             /* it is claimed, and there was none left in the region */
bool slot_is_own(const struct region_slot *slot);       /* claimed by this process, and nobody else's since */
bool slot_try_again(void);                              /* true: there may be a region or a slot now, which there was not */
void slot_look(void);                                   /* whether it is still ours, and its lock: now and then */

/* lenders.c: whether a process has imported memory of the slot's that is not cleared; the first slot of such a one from `from` on, or -1. */
bool lenders_is_borrowed(const struct region *region, uint32_t number);
int lenders_borrower(const struct region *region, uint32_t number, uint32_t from);
void lenders_restore(struct region_slot *own);  /* this process has another slot */

/* reap.c: the slot is not that tenant's any more, or he is dead. */
bool slot_has_ended(uint32_t number, uint64_t claimed_ns);
void slot_reap_now_and_then(void);

/* node_clock.c: looks how far our clock is ahead of the node's. */
void node_clock_look(void);

/* utilization.c */
void utilization_sample(void);                          /* now and then, while a process uses the GPU */

/* `locked` of a slot: SLOT_CLEARED_BLIND, its clearer has no descriptor to lock with, and is judged by its pid. */
enum { SLOT_UNLOCKED, SLOT_LOCKED, SLOT_CLEARED_BLIND };

/* slot_lock.c: a descriptor to lock with, which holds what it locks until it is closed, or longer where it is kept: until exec or the end. */
enum slot_lock { SLOT_LOCK_TAKEN, SLOT_LOCK_HELD, SLOT_LOCK_NONE };
int slot_lock_open(void);
void slot_lock_close(int file);
enum slot_lock slot_lock_try(int file, uint32_t slot);
void slot_lock_release(int file, uint32_t slot);
bool slot_lock_keep(int file);
bool slot_lock_is_free(int file, uint32_t slot);        /* nobody holds it, this process included */
bool slot_lock_is_a_copys(void);                        /* another copy of this library in this process keeps one */

/* process.c: ending is a process that has begun to and is not dead yet. */
uint64_t process_namespace(void);
uint64_t process_start_time(uint32_t pid);
bool process_is_dead(uint32_t pid, uint64_t start_time);
bool process_is_ending(uint32_t pid, uint64_t start_time);

#endif
