/* See links.h. */
#include "links.h"

static unsigned to_switch(const struct gpu_facts *facts, int nvswitch)
{
    unsigned count = 0;
    for (unsigned i = 0; i < facts->link_count; i++)
        count += facts->links[i].nvswitch == nvswitch;
    return count;
}

unsigned count_links(const struct machine *machine, unsigned one, unsigned other)
{
    const struct gpu_facts *first = &state_gpu(machine, one)->facts, *second = &state_gpu(machine, other)->facts;
    unsigned count = 0;
    for (unsigned i = 0; i < first->link_count; i++)
        count += first->links[i].gpu == (int)other;
    for (unsigned i = 0; i < machine->state->switch_count; i++) {
        unsigned mine = to_switch(first, (int)i), theirs = to_switch(second, (int)i);
        count += mine < theirs ? mine : theirs;
    }
    return count;
}
