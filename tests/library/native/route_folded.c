/*
 * The routing of cuGetProcAddress on made-up drivers: which of ours answers for an address that two functions share. Includes route.c whole.
 *
 * The driver's functions are numbers: 16 * (1 + row) as symbols, and the same + 1 << 20 as what cuGetProcAddress hands out. One row may be folded into
 * another: it has that one's numbers; one may be missing as a symbol, and its question be answered with an older one of its name. Out: "right", and 0.
 */
#include "interposer/cuda/route.c"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int first_of[FUNCTION_COUNT];   /* the first row with the same base */
static int folded = -1, into = -1, missing = -1;
static bool distinct;

static void *number(int row, bool answer)
{
    return (void *)(uintptr_t)((unsigned)(1 + (row == folded ? into : row)) * 16 + (answer && distinct ? 1u << 20 : 0));
}

/* Ours: never called, they only have addresses. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    __attribute__((noipa)) CUresult symbol parameters                                                                  \
    {                                                                                                                  \
        return (CUresult)FUNCTION_##symbol;                                                                            \
    }
#include "cuda_functions.h"
#undef CUDA

void *real_address(enum function function)
{
    return (int)function == missing ? NULL : number((int)function, false);
}

bool real_has(enum function function)
{
    return real_address(function) != NULL;
}

static void find_first(void)
{
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        while (strcmp(rows[first_of[i]].base, rows[i].base) != 0)
            first_of[i]++;
    }
}

/* `base` is that of a row, itself. */
static int first_with(const char *base)
{
    int i = 0;
    while (rows[i].base != base)
        i++;
    return first_of[i];
}

static CUresult answer(const char *base, void **entry, int version, uint64_t flag, CUdriverProcAddressQueryResult *status)
{
    int best = -1, first = first_with(base);
    (void)status;
    for (int i = first; i < FUNCTION_COUNT; i++) {
        if (i == missing || first_of[i] != first || rows[i].version > version || (rows[i].stream == STREAM_T) != (flag == FLAG_THREAD))
            continue;
        if (best < 0 || rows[i].version >= rows[best].version)
            best = i;
    }
    *entry = best < 0 ? NULL : number(best, true);
    return best < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

static CUresult answer_before_12(const char *base, void **entry, int version, uint64_t flag)
{
    return answer(base, entry, version, flag, NULL);
}

static const struct driver driver = {.cuGetProcAddress_v2 = answer, .cuGetProcAddress = answer_before_12};
const struct driver *_Atomic driver_functions = &driver;
_Thread_local unsigned hook_depth;

static void *routed(void *from)
{
    free(atomic_exchange(&published, NULL));
    return route(from);
}

static int wrong(const char *what, int row)
{
    printf("%s: %s, folded %d into %d, missing %d, distinct %d\n", what, rows[row].base, folded, into, missing, distinct);
    return 1;
}

/* An unhooked row near the hooked one, on either side, shares its address; also the other way round. */
static int check_folds(int hooked)
{
    for (int other = hooked > 3 ? hooked - 3 : 0; other < hooked + 4 && other < FUNCTION_COUNT; other++) {
        if (hooks[other] != NULL)
            continue;
        for (int way = 0; way < 4; way++) {
            distinct = way & 1;
            folded = way & 2 ? other : hooked;
            into = way & 2 ? hooked : other;
            if (routed(number(hooked, false)) != hooks[hooked] || (distinct && routed(number(hooked, true)) != hooks[hooked]))
                return wrong("not the hook", hooked);
        }
    }
    folded = into = -1;
    return 0;
}

/* The driver lacks the hooked variant and answers with an older one that is not hooked: that stays the driver's. */
static int check_missing(int hooked)
{
    void *entry;
    missing = hooked;
    distinct = true;
    answer(rows[hooked].base, &entry, rows[hooked].version, rows[hooked].stream == STREAM_T ? FLAG_THREAD : FLAG_DEFAULT, NULL);
    int other = entry == NULL ? -1 : (int)((uintptr_t)entry % (1 << 20) / 16 - 1);
    if (other >= 0 && routed(entry) != (hooks[other] != NULL ? hooks[other] : entry))
        return wrong("another signature", hooked);
    missing = -1;
    return 0;
}

int main(void)
{
    find_first();
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        if (hooks[i] != NULL && (check_folds(i) || check_missing(i)))
            return 1;
    }
    puts("right");
    return 0;
}
