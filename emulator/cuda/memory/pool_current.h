/* Which pool a device's allocations come from, and which properties a pool may have. Under memory_lock() where it says so. */
#ifndef VCUDA_EMULATOR_POOL_CURRENT_H
#define VCUDA_EMULATOR_POOL_CURRENT_H

#include "pool.h"

struct pool *pool_current(int device);      /* under memory_lock(); NULL: no memory */
CUresult pool_check_properties(const CUmemPoolProps *properties);

#endif
