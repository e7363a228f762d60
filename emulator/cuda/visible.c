/*
 * Which GPUs a process sees, in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER ("CUDA C Programming Guide", environment variables).
 *
 * A list of ordinals, or of UUIDs that may be cut short as long as they are unambiguous. The first entry that names no GPU ends the list.
 * Ordinals count GPUs that are there, fastest first by default, in the order of their PCI addresses otherwise.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "session.h"

static const struct gpu_facts *facts_of(const struct machine *machine, unsigned position)
{
    return &state_gpu(machine, position)->facts;
}

static uint64_t pci_order(const struct gpu_facts *facts)
{
    return (uint64_t)facts->domain << 32 | facts->bus << 8 | facts->device;
}

static uint64_t speed(const struct gpu_facts *facts)
{
    return (uint64_t)facts->cores * facts->sm_clock_mhz;
}

static int list_present(const struct machine *machine, unsigned *positions)
{
    static struct gpu_status status; /* cuInit runs once at a time */
    int count = 0;
    for (unsigned i = 0; i < machine->state->gpu_count; i++) {
        state_read(state_gpu(machine, i), &status);
        if (status.presence != PRESENT)
            continue;
        int at = count++;
        for (; at > 0 && pci_order(facts_of(machine, positions[at - 1])) > pci_order(facts_of(machine, i)); at--)
            positions[at] = positions[at - 1];
        positions[at] = i;
    }
    return count;
}

/* Only the first place is documented to be the fastest GPU's; the rest stays in PCI order. */
static void fastest_first(const struct machine *machine, unsigned *positions, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++) {
        if (speed(facts_of(machine, positions[i])) > speed(facts_of(machine, positions[best])))
            best = i;
    }
    unsigned first = positions[best];
    memmove(positions + 1, positions, (size_t)best * sizeof *positions);
    positions[0] = first;
}

static int find_uuid(const struct machine *machine, const unsigned *positions, int count, const char *entry, size_t length)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (strncasecmp(facts_of(machine, positions[i])->uuid, entry, length) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* The GPU that an entry names, as an index into `positions`; -1: none. */
static int find_entry(const struct machine *machine, const unsigned *positions, int count, const char *entry, size_t length)
{
    char *end = NULL;
    while (length > 0 && *entry == ' ') {
        entry++;
        length--;
    }
    while (length > 0 && entry[length - 1] == ' ')
        length--;
    if (length > 4 && strncmp(entry, "GPU-", 4) == 0)
        return find_uuid(machine, positions, count, entry, length);
    if (length == 0 || *entry < '0' || *entry > '9')
        return -1;
    unsigned long ordinal = strtoul(entry, &end, 10);
    return end == entry + length && ordinal < (unsigned long)count ? (int)ordinal : -1;
}

int visible_positions(const struct machine *machine, unsigned *positions)
{
    const char *order = getenv("CUDA_DEVICE_ORDER"), *list = getenv("CUDA_VISIBLE_DEVICES");
    unsigned present[MAX_GPUS];
    bool taken[MAX_GPUS] = {false};
    int count = list_present(machine, present), chosen = 0;
    if (order == NULL || strcmp(order, "PCI_BUS_ID") != 0)
        fastest_first(machine, present, count);
    if (list == NULL) {
        memcpy(positions, present, (size_t)count * sizeof *positions);
        return count;
    }
    for (const char *at = list; *at != '\0'; at += *at == ',') {
        size_t length = strcspn(at, ",");
        int found = find_entry(machine, present, count, at, length);
        if (found < 0 || taken[found])
            break;
        taken[found] = true;
        positions[chosen++] = present[found];
        at += length;
    }
    return chosen;
}
