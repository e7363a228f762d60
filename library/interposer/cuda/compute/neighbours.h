/*
 * The other containers' rows of one GPU: found, mapped, let go.
 *
 * In: the GPU's activity directory, our own grant. Out: mapped rows, read-only. Not here: what they say (presence.h).
 * Invariants: the directory is listed at most ten times a second; a file that is no row, or too short, is never mapped; a row whose file went away
 * is unmapped by the next listing, so one thread at a time uses what it gets and lists.
 */
#ifndef VCUDA_COMPUTE_NEIGHBOURS_H
#define VCUDA_COMPUTE_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

#include "presence.h"

struct neighbour {
    char name[64];
    uint64_t inode;
    const struct activity_row *row;
    bool listed;
};

struct neighbours {
    char directory[512];                /* "": there is none */
    char grant[33];                     /* our own, which is not among them */
    uint64_t listed_ns;
    bool readable;                      /* the directory, at the last look */
    unsigned count;
    struct neighbour found[PRESENCE_ROWS];
};

/* Lists again where that is due and puts the rows into `presence`. */
void neighbours_look(struct neighbours *neighbours, uint64_t now, struct presence *presence);

/* Maps a row file, or NULL. `writable`: our own. */
struct activity_row *neighbours_map(const char *path, bool writable);

#endif
