/*
 * Streams: queues of work on the emulated GPU's clock.
 *
 * In: work with a cost in nanoseconds of GPU time. Out: where it ends in the GPU's virtual time V (see shared/timeline.h), known as soon as it
 * is queued, or later where the stream waits for the host. Nothing executes; who waits sleeps until the clock is there.
 * Not here: what work does to memory; bytes move when the call is made.
 */
#ifndef VCUDA_EMULATOR_STREAM_H
#define VCUDA_EMULATOR_STREAM_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct exchange;
struct stream;

enum work_kind {
    WORK_KERNEL,
    WORK_COPY,                  /* on the copy engine: one at a time */
    WORK_MARKER,                /* takes no time: an event, a stream-ordered free */
};

struct work {
    enum work_kind kind;
    bool wide;                  /* a kernel that leaves no room for another beside it */
    uint64_t cost_ns;           /* of a kernel that waits: when all have begun */
    struct exchange *exchange;  /* NULL: it waits for nobody */
    unsigned ranks;
};

/* End of work that has no place in V yet, because the stream waits for the host. */
#define STREAM_UNPLACED UINT64_MAX

/* NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are of the current context; `per_thread`: NULL means the thread's own (_ptsz, _ptds). */
CUresult stream_of(CUstream handle, bool per_thread, struct stream **out);
struct context *stream_context(const struct stream *stream);
/* `end` may be NULL. The stream must not be capturing (capture.h). */
CUresult stream_enqueue(struct stream *stream, const struct work *work, uint64_t *end);
/* Sleeps until everything queued so far is done. No capture check. */
CUresult stream_wait(struct stream *stream);
/* Whether all work of the stream up to `end` is done now. For STREAM_UNPLACED: whether the stream is empty. */
bool stream_passed(struct stream *stream, uint64_t end);

/*
 * A point in a stream that can outlive it and that other streams can be ordered behind; what memory pools need to know whether a freed block
 * can be used again. By value, nothing to free.
 */
struct stream_point {
    struct stream *stream;
    uint64_t end;
    uint64_t ticket;
};
struct stream_point stream_point(struct stream *stream);        /* behind everything queued so far */
bool stream_point_passed(const struct stream_point *point);
/* Work queued in `stream` from now on starts after the point. */
void stream_follow(struct stream *stream, const struct stream_point *point);

/* What a copy costs, in ns of GPU time. */
enum copy_route { COPY_HOST_DEVICE, COPY_ON_DEVICE, COPY_PEER, MEMSET };
uint64_t copy_cost(enum copy_route route, uint64_t bytes);

#endif
