/* What the files of state/ know of each other; not exported. */
#ifndef VCUDA_STATE_INTERNAL_H
#define VCUDA_STATE_INTERNAL_H

#include "state.h"

/* paths.c: the base directory, found once a process; "" where there is none. */
void paths_find(void);
const char *paths_base(void);

/* limits_file.c: a file's limits, or why not, in words that follow the file's name. ENOENT is told apart by `missing`. */
enum { LIMITS_REASON = 128 };
struct limits_outcome {
    bool missing;
    char reason[LIMITS_REASON];     /* "" when read */
};
uint64_t limits_checksum(const char *bytes, size_t size);
struct limits_outcome limits_parse(const char *bytes, size_t size, struct limits_view *view);
struct limits_outcome limits_parse_legacy(const char *bytes, size_t size, struct limits_view *view);
struct limits_outcome limits_read_file(const char *path, struct limits_view *view);
struct limits_outcome limits_read_legacy(const char *path, struct limits_view *view);

/* live.c: the first view, and later ones. */
void limits_load(void);
void limits_announce(void);         /* tells those who registered */
void limits_forget(void);           /* in a forked child */

/* region.c, slot.c */
void region_forget(void);
void slot_forget(void);
void slot_reap_now_and_then(void);
uint64_t process_namespace(void);
uint64_t process_start_time(uint32_t pid);
bool process_is_dead(uint32_t pid, uint64_t start_time);

/* helper.c */
void helper_forget(void);

#endif
