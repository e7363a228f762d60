/* One capture, for the two files that implement captures. Under driver_lock(). */
#ifndef VCUDA_EMULATOR_CAPTURE_INTERNAL_H
#define VCUDA_EMULATOR_CAPTURE_INTERNAL_H

#include "capture_state.h"

struct capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread;            /* that began it */
    struct stream *origin;
    struct graph *graph;
    bool given;                 /* the graph is the application's */
    bool invalid;
    struct capture *next;
};

extern struct capture *captures;

/* Counts a violation, and the capture, which may be NULL, is invalid. Returns `error`. */
CUresult capture_fail(struct capture *capture, CUresult error);
struct capture *capture_by_id(uint64_t id);
struct capture *capture_of_blocking(const struct context *context);
bool capture_set_follows(struct stream *stream, struct node *const *nodes, size_t count);
/* All its streams go on as before; `discard`: and its graph goes with it. */
void capture_finish(struct capture *capture, bool discard);
/* A number of the calling thread's own. */
uint64_t thread_number(void);

#endif
