/* What a test in Python needs of the limiter's pure parts beyond their own functions: memory of the right size, and words in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/cuda/compute/borrow.h"
#include "interposer/cuda/compute/budget.h"
#include "interposer/cuda/compute/estimates.h"
#include "interposer/cuda/compute/guesses.h"
#include "interposer/cuda/compute/interval_set.h"
#include "interposer/cuda/compute/neighbours.h"
#include "interposer/cuda/compute/presence.h"

#define SHOWN __attribute__((visibility("default")))

/* ---- budget: a region with as many live processes as slots ---- */

struct access_budget {
    struct region region;
    struct budget processes[8];
};

SHOWN struct access_budget *access_budget(unsigned slots, uint32_t rate);
SHOWN int64_t access_refill(struct access_budget *made, unsigned process, uint64_t now);
SHOWN void access_reserve(struct access_budget *made, unsigned process, uint64_t ns);
SHOWN void access_measured(struct access_budget *made, unsigned process, uint64_t reserved, int64_t used);
SHOWN void access_die(struct access_budget *made, unsigned process);
SHOWN int64_t access_balance(const struct access_budget *made);
SHOWN void access_overwrite(struct access_budget *made, int64_t balance, uint64_t refilled);
SHOWN void access_free(void *made);

struct access_budget *access_budget(unsigned slots, uint32_t rate)
{
    struct access_budget *made = calloc(1, sizeof *made);
    for (unsigned i = 0; i < slots; i++) {
        made->region.slots[i].pid = i + 1;
        made->processes[i] = (struct budget){&made->region, &made->region.slots[i].use[0], 0, rate};
    }
    made->region.slot_high = slots;
    return made;
}

int64_t access_refill(struct access_budget *made, unsigned process, uint64_t now)
{
    return budget_refill(&made->processes[process], now);
}

void access_reserve(struct access_budget *made, unsigned process, uint64_t ns)
{
    budget_reserve(&made->processes[process], ns);
}

void access_measured(struct access_budget *made, unsigned process, uint64_t reserved, int64_t used)
{
    budget_charge(&made->processes[process], used);
    budget_release(&made->processes[process], reserved);
}

void access_die(struct access_budget *made, unsigned process)
{
    made->region.slots[process].pid = 0;
}

int64_t access_balance(const struct access_budget *made)
{
    return made->region.devices[0].balance_ns;
}

void access_overwrite(struct access_budget *made, int64_t balance, uint64_t refilled)
{
    made->region.devices[0].balance_ns = balance;
    made->region.devices[0].refilled_ns = refilled;
}

void access_free(void *made)
{
    free(made);
}

/* ---- interval_set ---- */

SHOWN struct interval_set *access_interval_set(void);
SHOWN unsigned access_add(struct interval_set *set, uint64_t start, uint64_t end, uint64_t *parts);

struct interval_set *access_interval_set(void)
{
    return calloc(1, sizeof(struct interval_set));
}

unsigned access_add(struct interval_set *set, uint64_t start, uint64_t end, uint64_t *parts)
{
    struct interval found[INTERVAL_SET_MOST + 1];
    unsigned count = interval_set_add(set, (struct interval){start, end}, found);
    memcpy(parts, found, count * sizeof found[0]);
    return count;
}

/* ---- presence: rows of one slot each, the first with ours beside it ---- */

struct access_presence {
    struct presence presence;
    struct edges edges;
    struct activity_row rows[4];
};

SHOWN struct access_presence *access_presence(void);
SHOWN void access_publish(struct access_presence *made, unsigned row, unsigned slot, uint64_t start, uint64_t end);
SHOWN void access_busy(struct access_presence *made, unsigned row, unsigned slot, uint64_t since, uint64_t heartbeat);
SHOWN uint64_t access_share(struct access_presence *made, uint64_t start, uint64_t end, uint64_t now);
SHOWN uint64_t access_reach(struct access_presence *made, uint64_t start, uint64_t end, uint64_t own, uint64_t now);
SHOWN void access_write(struct access_presence *made, unsigned row, unsigned slots, const uint64_t *ring);
SHOWN double access_taken(const struct access_presence *made, unsigned row);

struct access_presence *access_presence(void)
{
    struct access_presence *made = calloc(1, sizeof *made);
    made->presence.row = &made->rows[0];
    made->presence.own = &made->rows[0].slots[0];
    made->presence.other_count = 3;
    for (unsigned i = 0; i < 4; i++)
        made->rows[i].slot_high = 2;
    for (unsigned i = 0; i < 3; i++)
        made->presence.others[i].row = &made->rows[i + 1];
    return made;
}

void access_publish(struct access_presence *made, unsigned row, unsigned slot, uint64_t start, uint64_t end)
{
    presence_publish(&made->rows[row].slots[slot], (struct interval){start, end});
}

void access_busy(struct access_presence *made, unsigned row, unsigned slot, uint64_t since, uint64_t heartbeat)
{
    presence_busy(&made->rows[row].slots[slot], since, heartbeat);
}

uint64_t access_share(struct access_presence *made, uint64_t start, uint64_t end, uint64_t now)
{
    return presence_share(&made->presence, (struct interval){start, end}, now, &made->edges);
}

uint64_t access_reach(struct access_presence *made, uint64_t start, uint64_t end, uint64_t own, uint64_t now)
{
    return presence_reach(&made->presence, (struct interval){start, end}, own, now, &made->edges);
}

/* So many slots with the same ring: ACTIVITY_RING pairs of start and end. */
void access_write(struct access_presence *made, unsigned row, unsigned slots, const uint64_t *ring)
{
    made->rows[row].slot_high = slots;
    for (unsigned i = 0; i < slots; i++) {
        made->rows[row].slots[i].head = ACTIVITY_RING;
        memcpy(made->rows[row].slots[i].ring, ring, sizeof made->rows[row].slots[i].ring);
    }
}

double access_taken(const struct access_presence *made, unsigned row)
{
    return made->edges.owners[row - 1].taken_ns;
}

/* ---- claims ---- */

SHOWN struct claim *access_claim(uint32_t rate);
SHOWN int access_spent(const struct claim *made);

struct claim *access_claim(uint32_t rate)
{
    struct claim *made = calloc(1, sizeof *made);
    made->rate = rate;
    return made;
}

int access_spent(const struct claim *made)
{
    return made->spent;
}

/* ---- neighbours, as files show them ---- */

SHOWN struct neighbours *access_neighbours(const char *directory, const char *grant);
SHOWN void access_look(struct neighbours *made, uint64_t now, uint32_t cores, uint32_t soft_cores);
SHOWN unsigned access_neighbour(const struct neighbours *made, const char *name, uint64_t *found);
SHOWN int access_assumed(const struct neighbours *made, const char *name);

struct neighbours *access_neighbours(const char *directory, const char *grant)
{
    struct neighbours *made = calloc(1, sizeof *made);
    snprintf(made->directory, sizeof made->directory, "%s", directory);
    snprintf(made->grant, sizeof made->grant, "%s", grant);
    return made;
}

void access_look(struct neighbours *made, uint64_t now, uint32_t cores, uint32_t soft_cores)
{
    struct presence presence = {0};
    neighbours_look(made, now, &presence);
    neighbours_judge(made, (struct share){cores, soft_cores, now}, now);
}

/* Cores, soft cores, when it wanted the GPU, the rate that it may claim. 0: there is none of that name. */
unsigned access_neighbour(const struct neighbours *made, const char *name, uint64_t *found)
{
    for (unsigned i = 0; i < made->count; i++) {
        const struct neighbour *one = &made->found[i];
        if (strcmp(one->name, name) != 0)
            continue;
        memcpy(found, (uint64_t[]){one->share.cores, one->share.soft_cores, one->share.wanted_ns, one->claim.rate}, 4 * sizeof found[0]);
        return 1;
    }
    return 0;
}

/* Whether it is assumed to use its rate; -1: there is none of that name. */
int access_assumed(const struct neighbours *made, const char *name)
{
    for (unsigned i = 0; i < made->count; i++) {
        if (strcmp(made->found[i].name, name) == 0)
            return made->found[i].claim.assumed;
    }
    return -1;
}

/* ---- estimates ---- */

SHOWN struct estimates *access_estimates(void);
SHOWN void access_learn(struct estimates *made, uint64_t handle, uint32_t grid, uint64_t ns);
SHOWN uint64_t access_estimate(struct estimates *made, uint64_t handle, uint32_t grid);
SHOWN void access_forget(struct estimates *made, uint64_t handle, uint32_t grid);
SHOWN uint64_t access_guess(struct estimates *made, uint64_t handle, uint32_t grid, uint32_t block, bool together);
SHOWN void access_grid_measured(struct estimates *made, uint64_t handle, uint32_t grid, uint32_t block, bool together, uint64_t ns);
SHOWN bool access_can_wait(struct estimates *made, uint32_t few_blocks, uint32_t gx, uint32_t gy, uint32_t gz, bool together);

static struct launch_key key_of(uint64_t handle, uint32_t grid)
{
    return launch_key((const void *)(uintptr_t)handle, grid, 1, 1, 256, 1, 1);
}

struct estimates *access_estimates(void)
{
    return calloc(1, sizeof(struct estimates));
}

void access_learn(struct estimates *made, uint64_t handle, uint32_t grid, uint64_t ns)
{
    struct launch_key key = key_of(handle, grid);
    estimate_learn(estimates_find(made, &key), ns);
}

uint64_t access_estimate(struct estimates *made, uint64_t handle, uint32_t grid)
{
    struct launch_key key = key_of(handle, grid);
    return estimate_ns(estimates_find(made, &key));
}

void access_forget(struct estimates *made, uint64_t handle, uint32_t grid)
{
    struct launch_key key = key_of(handle, grid);
    estimates_forget(made, &key);
}

static struct launch_key key_of_block(uint64_t handle, uint32_t grid, uint32_t block, bool together)
{
    struct launch_key key = launch_key((const void *)(uintptr_t)handle, grid, 1, 1, block, 1, 1);
    key.dimensions[2] |= together ? LAUNCH_TOGETHER : 0;
    return key;
}

uint64_t access_guess(struct estimates *made, uint64_t handle, uint32_t grid, uint32_t block, bool together)
{
    struct launch_key key = key_of_block(handle, grid, block, together);
    return estimate_ns(guesses_find(made, &key));
}

void access_grid_measured(struct estimates *made, uint64_t handle, uint32_t grid, uint32_t block, bool together, uint64_t ns)
{
    struct launch_key key = key_of_block(handle, grid, block, together);
    estimate_learn(guesses_find(made, &key), ns);
}

bool access_can_wait(struct estimates *made, uint32_t few_blocks, uint32_t gx, uint32_t gy, uint32_t gz, bool together)
{
    struct launch_key key = launch_key(made, gx, gy, gz, 256, 1, 1);
    key.dimensions[2] |= together ? LAUNCH_TOGETHER : 0;
    made->few_blocks = few_blocks;
    return estimate_can_wait(estimates_find(made, &key));
}
