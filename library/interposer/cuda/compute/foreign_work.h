/*
 * Foreign work: what is put into a stream and is no launch: waits, host functions, copies over the bus. Its time is not the GPU's.
 *
 * In: the stream, from the thread that puts it there, before and after the driver hears of it. Out: a count for each stream, by which a queue finds that
 * its batch is not alone between its marks, whichever thread was in between. Not here: closing the caller's own batch before it (thread.h).
 *
 * Streams share counts by some bits of their handle, and all of them count what the legacy stream gets, which may hold them back. A count that is too high
 * costs an exact measurement: the batch's estimates stand for it then.
 */
#ifndef VCUDA_COMPUTE_FOREIGN_WORK_H
#define VCUDA_COMPUTE_FOREIGN_WORK_H

#include <stdint.h>

#include "cuda.h"

void foreign_work_put(CUstream stream);
uint64_t foreign_work_count(CUstream stream);

#endif
