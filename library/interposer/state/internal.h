/*
 * What the files of state/ know of each other; not exported. A file calls those of the layers below its own, and no others
 * (tests/library/test_interposer_layers.py); what a lower one has to call is registered there: ticks (vcuda_helper_add), vcuda_on_fork, vcuda_on_slot.
 *
 *     lenders
 *     slot
 *     reap
 *     slot_lock, slot_table, utilization
 *     region
 *     limits
 *     fork, helper, node_clock
 *     limits_file, log, once, paths, process, symbols
 *
 * Below, the lowest layer comes first.
 */
#ifndef VCUDA_STATE_INTERNAL_H
#define VCUDA_STATE_INTERNAL_H

#include "state.h"

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

/* paths.c: the base directory, found by limits.c when the process attaches; "" where there is none. */
void paths_find(void);
const char *paths_base(void);

/* process.c: ending is a process that has begun to and is not dead yet. */
uint64_t process_namespace(void);
uint64_t process_start_time(uint32_t pid);
bool process_is_dead(uint32_t pid, uint64_t start_time);
bool process_is_ending(uint32_t pid, uint64_t start_time);

/* node_clock.c: looks how far our clock is ahead of the node's. */
void node_clock_look(void);

/* region.c: a descriptor of the file that is mapped, or -1. The file is mapped now, which could not be opened or mapped before. It can be used. */
int region_open(void);
bool region_open_again(void);
bool region_is_usable(void);

/* slot_lock.c: a descriptor to lock with, which holds what it locks until it is closed, or longer where it is kept: until exec or the end. */
enum slot_lock { SLOT_LOCK_TAKEN, SLOT_LOCK_HELD, SLOT_LOCK_NONE };
int slot_lock_open(void);
void slot_lock_close(int file);
enum slot_lock slot_lock_try(int file, uint32_t slot);
void slot_lock_release(int file, uint32_t slot);
bool slot_lock_keep(int file);
bool slot_lock_is_free(int file, uint32_t slot);        /* nobody holds it, this process included */
bool slot_lock_is_a_copys(void);                        /* another copy of this library in this process keeps one */

/* `locked` of a slot: SLOT_CLEARED_BLIND, its clearer has no descriptor to lock with, and is judged by its pid. */
enum { SLOT_UNLOCKED, SLOT_LOCKED, SLOT_CLEARED_BLIND };

/* slot_table.c. The lenders of a slot are the slots whose memory its process has imported; their bits, by their numbers. */
void slot_clear(struct region_slot *slot);              /* what it counts, not whose it is */
uint64_t slot_namespace(void);                          /* our pid namespace */
void slot_forget_namespace(void);                       /* it may be another one */
uint32_t slot_high(const struct region *region);
bool slot_is_of(const struct region_slot *slot, uint32_t pid);     /* in our pid namespace */
bool slot_is_own(const struct region_slot *slot);       /* claimed by this process, and nobody else's since */
void slot_add_lender(struct region_slot *slot, uint32_t lender);
void slot_remove_lender(struct region_slot *slot, uint32_t lender);
bool slot_is_borrowed(const struct region *region, uint32_t lender);
int slot_borrower(const struct region *region, uint32_t lender, uint32_t from);     /* the first slot from `from` on that has this lender, or -1 */

/* utilization.c */
void utilization_sample(void);                          /* now and then, while a process uses the GPU */

/* reap.c: the slot is not that tenant's any more, or he is dead. */
bool slot_has_ended(uint32_t number, uint64_t claimed_ns);
void slot_reap_now_and_then(void);

/* slot.c */
bool slot_is_outside(void);                             /* it is claimed, and there was none left in the region */

#endif
