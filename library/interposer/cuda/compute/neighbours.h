/*
 * The other containers' rows of one GPU: found, copied, let go.
 *
 * In: the GPU's activity directory, our own grant. Out: a private copy of each row, some milliseconds old. Not here: what they say (presence.h).
 * A container's limits are told by the agent in a file beside its row, `.<grant>`, which nobody else can write: cores, soft cores, and what its neighbours
 * shall assume that it uses, whatever its row says; 0: the row is believed. Where the file is missing, the row's own word counts, as far as there is room
 * beside our share.
 * Invariants: a neighbour's file is read and never mapped, because its writer can also cut it, and a mapping would then fault; the directory
 * is listed at most ten times a second; a container whose limits are told and whose file is no row, too short or not readable is assumed to use what it
 * may (claim.h), and without told limits it is ignored; a row whose file went away is forgotten by the next listing, so one thread at a time uses what it gets and lists.
 */
#ifndef VCUDA_COMPUTE_NEIGHBOURS_H
#define VCUDA_COMPUTE_NEIGHBOURS_H

#include <stdbool.h>
#include <stdint.h>

#include "borrow.h"
#include "presence.h"

struct neighbour {
    char name[64];
    uint64_t inode;
    struct activity_row *row;
    bool listed;
    bool read;                          /* its row, at the last look */
    bool told;                          /* by the agent, what its limits are; else its row has to do */
    uint32_t assumed_cores;             /* by the agent; 0: its row is believed */
    struct share share;
    struct claim claim;
};

enum { NEIGHBOURS_REASON = 64 };

struct neighbours {
    char directory[512];                /* "": there is none */
    char grant[33];                     /* our own, which is not among them */
    uint64_t listed_ns, read_ns, judged_ns;
    int64_t ahead_ns;                   /* as in presence.h */
    bool readable;                      /* the directory, at the last look */
    bool hidden;                        /* our own row is not believed, so we assume nothing of others: who hides pays for all turns */
    unsigned count;
    struct neighbour found[PRESENCE_ROWS];
};

/* Lists again where that is due and puts the rows into `presence`. */
void neighbours_look(struct neighbours *neighbours, uint64_t now, struct presence *presence);

/* What each of them may have and wants, as far as that can be: its `share`, and what it may claim beside us. `now`: after the look. */
void neighbours_judge(struct neighbours *neighbours, struct share own, uint64_t now);

/* Our own row, mapped to be written, or NULL with the reason. */
struct activity_row *neighbours_map_own(const char *path, char reason[static NEIGHBOURS_REASON]);

#endif
