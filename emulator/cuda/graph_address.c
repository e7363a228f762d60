/* See graph_address.h. A list: graphs have few allocation nodes. */
#include "graph_address.h"

#include <stdlib.h>

#include "lock.h"
#include "memory.h"

struct named {
    CUdeviceptr address;
    unsigned count;             /* 0: no graph names it; memory/ does not know this yet */
    struct named *next;
};

static struct named *all;
static unsigned unnamed;        /* how many of them have count 0 */

static struct named *find(CUdeviceptr address)
{
    struct named *at = all;
    while (at != NULL && (at->address != address || at->count == 0))
        at = at->next;
    return at;
}

bool graph_address_hold(CUdeviceptr address)
{
    struct named *found = find(address);
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        if (found == NULL)
            return false;
        found->address = address;
        found->next = all;
        all = found;
    }
    found->count++;
    return true;
}

void graph_address_let_go(CUdeviceptr address)
{
    struct named *found = find(address);
    if (found != NULL && --found->count == 0)
        unnamed++;
}

/* One that no graph names, taken out of the list; 0: none. */
static CUdeviceptr take_unnamed(void)
{
    for (struct named **at = &all; *at != NULL; at = &(*at)->next) {
        struct named *found = *at;
        if (found->count > 0)
            continue;
        CUdeviceptr address = found->address;
        *at = found->next;
        free(found);
        unnamed--;
        return address;
    }
    return 0;
}

void graph_address_sweep(void)
{
    driver_lock();
    while (unnamed > 0) {
        CUdeviceptr address = take_unnamed();
        driver_unlock();
        graph_memory_forget(address);
        driver_lock();
    }
    driver_unlock();
}
