/*
 * Free ranges of addresses against a plain array of what is taken: random takes and gives, joined and not joined.
 *
 *   ranges_model ROUNDS SEED
 *
 * Out: 0 where both always agree; a line and 1 where they do not.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/memory/ranges.h"

enum { CELLS = 600, HALF = CELLS / 2, LIVE = 64 };

static unsigned char taken[CELLS];
static struct ranges ranges;

/* Two areas beside each other that are never joined. */
static struct bounds area(uint64_t start)
{
    return start < HALF ? (struct bounds){0, HALF} : (struct bounds){HALF, CELLS};
}

static int first_fit(uint64_t size, uint64_t alignment)
{
    for (uint64_t at = 0; at + size <= CELLS; at += alignment) {
        uint64_t i = 0;
        while (i < size && taken[at + i] == 0 && area(at).low == area(at + i).low)
            i++;
        if (i == size)
            return (int)at;
    }
    return -1;
}

static void mark(uint64_t start, uint64_t size, unsigned char as)
{
    for (uint64_t i = 0; i < size; i++)
        taken[start + i] = as;
}

static int fail(const char *what, uint64_t size, uint64_t alignment, long expected)
{
    printf("%s of %llu by %llu: expected %ld\n", what, (unsigned long long)size, (unsigned long long)alignment, expected);
    return 1;
}

static struct { uint64_t start, size; } live[LIVE];

/* At a place of the caller's. 0: as the array says, and `*got` whether it was taken. */
static int take_at(uint64_t start, uint64_t size, int *got)
{
    uint64_t free_cells = 0;
    while (free_cells < size && taken[start + free_cells] == 0 && area(start).low == area(start + free_cells).low)
        free_cells++;
    *got = free_cells == size;
    return ranges_take_at(&ranges, start, size) == *got ? 0 : fail("a take at a place", size, start, (long)free_cells);
}

static int take(uint64_t *start, uint64_t size, uint64_t alignment, int *got)
{
    long expected = first_fit(size, alignment);
    *got = expected >= 0;
    if (ranges_take(&ranges, size, alignment, start) != *got)
        return fail("a take", size, alignment, expected);
    return !*got || *start == (uint64_t)expected ? 0 : fail("the place of a take", size, alignment, expected);
}

static int one_round(void)
{
    unsigned one = (unsigned)rand() % LIVE;
    uint64_t start, size = 1 + (unsigned)rand() % 40, alignment = UINT64_C(1) << (unsigned)rand() % 5;
    int got, wrong;
    if (live[one].size != 0) {
        ranges_give(&ranges, live[one].start, live[one].size, area(live[one].start));
        mark(live[one].start, live[one].size, 0);
        live[one].size = 0;
        return 0;
    }
    if (rand() % 4 == 0) {
        start = (unsigned)rand() % (CELLS - size);
        wrong = take_at(start, size, &got);
    } else {
        wrong = take(&start, size, alignment, &got);
    }
    if (wrong || !got)
        return wrong;
    mark(start, size, 1);
    live[one].start = start;
    live[one].size = size;
    return 0;
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    srand((unsigned)atoi(words[2]));
    ranges_give(&ranges, 0, HALF, area(0));
    ranges_give(&ranges, HALF, CELLS - HALF, area(HALF));
    for (long round = strtol(words[1], NULL, 10); round > 0; round--)
        if (one_round() != 0)
            return 1;
    puts("agreed");
    return 0;
}
