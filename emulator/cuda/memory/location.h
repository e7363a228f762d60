/* Where memory shall be. A GPU here has one locality domain: memory there is memory of the whole GPU, and said to be. */
#ifndef VCUDA_EMULATOR_LOCATION_H
#define VCUDA_EMULATOR_LOCATION_H

#include "cuda.h"

/* The device is the lowest byte, its domain the next one. */
static inline CUmemLocation location_of(CUmemLocation location)
{
    unsigned id = (unsigned)location.id;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN || (id >> 8 & 0xff) != 0)
        return location;
    return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, (int)(id & 0xff)};
}

#endif
