/*
 * cuGetProcAddress: from a base name, a version and the kind of default stream to the function ("CUDA Driver API, Driver Entry Point Access").
 *
 * The newest one that is not newer than asked for; with the per-thread flag its _ptsz or _ptds twin where there is one. What is newer than the
 * emulated driver (the profile's "cuda") or named in VCUDA_EMULATOR_HIDE does not exist. Invariant: the pointer is the one that dlsym gives.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "entry.h"
#include "session.h"

enum stream_kind { L, T };

struct row {
    const char *symbol, *base;
    int version;
    enum stream_kind kind;
    void *entry;
};

static const struct row rows[] = {
#define CUDA(symbol, base, version, stream, parameters, arguments) {#symbol, #base, version, stream, (void *)symbol},
#include <cuda_functions.h>
#undef CUDA
#define UNSUPPORTED(symbol, base, version, stream) {#symbol, #base, version, stream, (void *)symbol},
#include "unsupported_functions.h"
#undef UNSUPPORTED
};

static bool hidden(const char *symbol)
{
    const char *list = getenv("VCUDA_EMULATOR_HIDE");
    size_t length = strlen(symbol);
    for (const char *at = list; at != NULL && *at != '\0'; at += *at == ',') {
        size_t here = strcspn(at, ",");
        if (here == length && strncmp(at, symbol, length) == 0)
            return true;
        at += here;
    }
    return false;
}

static bool better(const struct row *row, const struct row *best, bool per_thread)
{
    if (best == NULL)
        return true;
    if (per_thread && row->kind != best->kind)
        return row->kind == T;
    return row->version > best->version;
}

/* NULL: none; `known`: but a newer one exists. */
static const struct row *find(const char *base, int version, bool per_thread, int newest, bool *known)
{
    const struct row *best = NULL;
    *known = false;
    for (unsigned i = 0; i < SYMBOL_COUNT; i++) {
        const struct row *row = &rows[i];
        if (strcmp(row->base, base) != 0 || row->version > newest || (row->kind == T && !per_thread) || hidden(row->symbol))
            continue;
        *known = true;
        if (row->version <= version && better(row, best, per_thread))
            best = row;
    }
    return best;
}

static CUresult look_up(const char *symbol, void **entry, int version, uint64_t flags, bool *known)
{
    int newest;
    *known = false;
    if (symbol == NULL || entry == NULL || *symbol == '\0' || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    *entry = NULL;
    if (entry_cuDriverGetVersion(&newest) != CUDA_SUCCESS)
        newest = INT32_MAX;
    if (version > newest)
        return CUDA_ERROR_INVALID_VALUE;
    const struct row *row = find(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, newest, known);
    if (row == NULL)
        return CUDA_ERROR_NOT_FOUND;
    *entry = row->entry;
    return CUDA_SUCCESS;
}

ENTRY(cuGetProcAddress)(const char *symbol, void **entry, int version, uint64_t flags)
{
    bool known;
    return look_up(symbol, entry, version, flags, &known);
}

ENTRY(cuGetProcAddress_v2)(const char *symbol, void **entry, int version, uint64_t flags, CUdriverProcAddressQueryResult *symbol_status)
{
    bool known;
    CUresult error = look_up(symbol, entry, version, flags, &known);
    if (error != CUDA_SUCCESS && error != CUDA_ERROR_NOT_FOUND)
        return error;
    if (symbol_status != NULL)
        *symbol_status = error == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
                         : known               ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}
