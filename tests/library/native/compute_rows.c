/*
 * Rows that say anything, read as the library reads them: from files, into shares of our stretches and what may be borrowed.
 *
 * In: a directory, a seed, how many rounds. In each round the neighbours' files are written over with numbers of every size, and so are, sometimes, their
 * heads and their lengths. Out: exit status 0 if in every round a stretch was divided into something possible, the rate was between our limit and our soft
 * limit, and each neighbour had claimed no more than its rate gives it, one long kernel and one stretch; else a line that says what was not so.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interposer/cuda/compute/neighbours.h"

#define SECOND UINT64_C(1000000000)
enum { NEIGHBOURS = 4, WORDS = 400, OWN_CORES = 30, OWN_SOFT = 80, CORES = 10 };

static uint64_t seed, now_ns = 1000 * SECOND;
static struct activity_row written;

static uint64_t below(uint64_t most)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % most;
}

static uint64_t any(void)
{
    uint64_t value = below(UINT64_MAX) >> below(64);
    return below(3) == 0 ? value : below(2) == 0 ? now_ns - below(SECOND / 5) : now_ns + below(SECOND / 20);
}

static int opened(const char *directory, unsigned number, const char *prefix)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%sg-%u", directory, prefix, number);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        exit(3);
    return file;
}

static void put(int file, const void *from, size_t size, size_t at)
{
    if (pwrite(file, from, size, (off_t)at) != (ssize_t)size)
        exit(3);
}

static void write_head(int file)
{
    written.magic = ACTIVITY_MAGIC;
    written.version = ACTIVITY_VERSION;
    written.size = sizeof written;
    written.slot_high = below(4) == 0 ? (uint32_t)any() : (uint32_t)below(200);
    written.cores = (uint32_t)any();
    written.soft_cores = (uint32_t)any();
    written.wanted_ns = any();
    if (below(50) == 0)
        written.magic = any();
    put(file, &written, offsetof(struct activity_row, slots), 0);
}

static void write_slot(int file, unsigned number)
{
    struct activity_slot *slot = &written.slots[number];
    slot->heartbeat_ns = any();
    slot->busy_since_ns = any();
    slot->head = below(2) == 0 ? any() : below(2 * ACTIVITY_RING);
    slot->busy_ns = any();
    for (unsigned i = 0; i < WORDS; i++) {
        struct activity_stretch *entry = &slot->ring[below(ACTIVITY_RING)];
        entry->start_ns = any();
        entry->end_ns = below(2) == 0 ? entry->start_ns + below(SECOND / 100) : any();
    }
    put(file, slot, sizeof *slot, offsetof(struct activity_row, slots) + number * sizeof *slot);
}

static void scribble(const char *directory)
{
    for (unsigned i = 0; i < NEIGHBOURS; i++) {
        int file = opened(directory, i, "");
        write_head(file);
        for (unsigned k = 0; k < 4; k++)
            write_slot(file, (unsigned)below(130));
        if (ftruncate(file, below(20) == 0 ? (off_t)below(sizeof written) : (off_t)sizeof written) != 0)
            exit(3);
        close(file);
    }
}

static void fail(const char *what, double value)
{
    printf("%s: %f\n", what, value);
    exit(1);
}

int main(int count, char **words)
{
    static struct neighbours neighbours;
    static struct edges edges;
    struct presence presence = {0};
    double claimed[NEIGHBOURS] = {0};
    struct share shares[PRESENCE_ROWS];
    if (count != 4)
        return 2;
    snprintf(neighbours.directory, sizeof neighbours.directory, "%s", words[1]);
    seed = strtoull(words[2], NULL, 10) * 2654435761u + 1;
    for (unsigned i = 0; i < NEIGHBOURS; i++) {
        int file = opened(words[1], i, ".");
        put(file, (uint32_t[]){CORES, 0}, 8, 0);
        close(file);
    }
    uint64_t first = now_ns, rounds = strtoull(words[3], NULL, 10);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t length = 1 + below(below(20) == 0 ? 10 * SECOND : 20000000);
        now_ns += length;
        scribble(words[1]);
        neighbours_look(&neighbours, now_ns, &presence);
        neighbours_judge(&neighbours, (struct share){OWN_CORES, OWN_SOFT, now_ns}, now_ns);
        for (unsigned i = 0; i < neighbours.count; i++)
            shares[i] = neighbours.found[i].share;
        uint32_t rate = borrow_rate((struct share){OWN_CORES, OWN_SOFT, now_ns}, shares, neighbours.count, now_ns);
        if (rate < OWN_CORES * 1000 || rate > OWN_SOFT * 1000)
            fail("rate", rate);
        struct interval stretch = {now_ns - length, now_ns};
        uint64_t reached = presence_reach(&presence, stretch, length / 3, now_ns, &edges);
        if (reached < stretch.start || reached > stretch.end)
            fail("reached", (double)reached);
        uint64_t share = presence_share(&presence, stretch, now_ns, &edges);
        if (share > length || (double)share * (1 + 128 * NEIGHBOURS) + 2000 < (double)length)
            fail("share", (double)share);
        double taken = 0;
        for (unsigned i = 0; i < presence.other_count; i++) {
            unsigned number = (unsigned)(neighbours.found[i].name[2] - '0');
            claimed[number] += edges.owners[i].taken_ns;
            taken += edges.owners[i].taken_ns;
            if (claimed[number] > (double)(now_ns - first) * 0.1113 + CLAIM_NS + 10e9)
                fail("claimed", claimed[number]);
        }
        if (taken + (double)share > (double)length + 2 || taken + (double)share < (double)length - 2)
            fail("taken and kept", taken + (double)share);
        presence_draw(&presence, &edges);
    }
    printf("%f\n", claimed[0] + claimed[1] + claimed[2] + claimed[3]);
    return 0;
}
