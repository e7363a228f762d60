/* See borrow.h. */
#include "borrow.h"

#include <stdbool.h>

#include "budget.h"

enum { THOUSAND = 1000 };

static bool wants(const struct share *share, uint64_t now)
{
    return share->wanted_ns != 0 && share->wanted_ns + BORROW_ACTIVE_NS > now;
}

/* How much more than its own a container would take. */
static uint32_t appetite(const struct share *share)
{
    return share->soft_cores > share->cores ? (share->soft_cores - share->cores) * THOUSAND : 0;
}

static uint32_t idle_rate(struct share own, const struct share *others, unsigned count, uint64_t now)
{
    uint64_t entitled = (uint64_t)own.cores * THOUSAND;
    for (unsigned i = 0; i < count; i++)
        entitled += wants(&others[i], now) ? (uint64_t)others[i].cores * THOUSAND : 0;
    return entitled >= BUDGET_WHOLE ? 0 : (uint32_t)(BUDGET_WHOLE - entitled);
}

/* The even part: those whose appetite is smaller get all of it, and leave the rest to the others. */
static uint32_t even_part(uint32_t idle, uint32_t appetite_own, const struct share *others, unsigned count, uint64_t now)
{
    uint32_t part = 0;
    /* Each round lifts the level: what the satisfied leave goes to the others. It never falls, so this ends. */
    for (;;) {
        uint64_t eaten = appetite_own <= part ? appetite_own : 0;
        unsigned hungry = appetite_own > part;
        for (unsigned i = 0; i < count; i++) {
            uint32_t other = wants(&others[i], now) ? appetite(&others[i]) : 0;
            eaten += other <= part ? other : 0;
            hungry += other > part;
        }
        if (hungry == 0)
            return appetite_own;
        uint32_t next = eaten >= idle ? 0 : (uint32_t)((idle - eaten) / hungry);
        if (next <= part)
            return part;
        part = next;
    }
}

uint32_t borrow_rate(struct share own, const struct share *others, unsigned count, uint64_t now)
{
    uint32_t hungry = appetite(&own), most = own.cores * THOUSAND;
    if (hungry == 0)
        return most;
    uint32_t part = even_part(idle_rate(own, others, count, now), hungry, others, count, now);
    return most + (part < hungry ? part : hungry);
}
