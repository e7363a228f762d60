/*
 * Pools: made, met, trimmed, destroyed. In: the application's calls. Out: the driver's answer, but for pools of managed memory. Pools that another process
 * shared give out no memory here; they are never met.
 */
#include "memory.h"
#include "ordered.h"
#include "reclaim.h"
#include "virtual_hooks.h"

static CUresult met(CUresult error, const CUmemoryPool *pool, const CUmemLocation *location)
{
    if (error == CUDA_SUCCESS && !hook_nested() && pool != NULL && location != NULL && account_needed())
        ordered_meet(*pool, *location);
    return error;
}

/* How much of a GPU a pool of managed memory has, the driver does not tell. It refuses them in the same way where a GPU cannot share such memory. */
static bool is_refused(CUmemAllocationType type)
{
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED && !hook_nested() && account_needed();
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *pool_props)
{
    if (pool_props != NULL && !memory_may_be_at(&pool_props->location))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool_props != NULL && is_refused(pool_props->allocType))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult error = DRIVER(cuMemPoolCreate, pool, pool_props);
    return met(error, pool, pool_props == NULL ? NULL : &pool_props->location);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    if (is_refused(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult error = DRIVER(cuMemGetDefaultMemPool, pool_out, location, type);
    return met(error, pool_out, location);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    if (is_refused(type))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult error = DRIVER(cuMemGetMemPool, pool, location, type);
    return met(error, pool, location);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t min_bytes_to_keep)
{
    struct account_span span;
    unsigned index;

    if (hook_nested() || !pools_any())
        return real.cuMemPoolTrimTo(pool, min_bytes_to_keep);
    account_begin(&span, ACCOUNT_ANY);
    CUresult error = DRIVER(cuMemPoolTrimTo, pool, min_bytes_to_keep);
    struct pool *known = error == CUDA_SUCCESS ? pools_known(pool, &index) : NULL;
    if (known != NULL)
        pools_read(known, reclaim_read_pool);
    account_end(&span);
    return error;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct account_span span;

    if (hook_nested() || !pools_any())
        return real.cuMemPoolDestroy(pool);
    account_begin(&span, ACCOUNT_ANY);
    struct pool *known = pools_destroy_begin(pool);
    CUresult error = DRIVER(cuMemPoolDestroy, pool);
    if (known != NULL)
        pools_destroy_end(known, pool, error == CUDA_SUCCESS);
    account_end(&span);
    return error;
}
