/* The inside of a context, for the parts of the core that hang their own things on it. Guarded by driver_lock(), except what is constant. */
#ifndef VCUDA_EMULATOR_CONTEXT_STATE_H
#define VCUDA_EMULATOR_CONTEXT_STATE_H

#include "context.h"
#include "gpu.h"
#include "object.h"

enum { CONTEXT_LIMITS = 11, MAX_PEERS = 64 };

struct stream;
struct module;

struct context {
    struct object object;
    struct gpu *gpu;
    uint64_t id;
    unsigned flags, api_version;
    bool primary;
    struct context *root;       /* of a green context the primary one, which has all but streams; of any other itself */
    uint64_t holder;            /* of a green context: the thread that has it on its stack, so often */
    unsigned held;
    unsigned references;        /* of one that is not primary: cuCtxAttach, cuCtxDetach */
    bool alive;                 /* a primary context ends and begins again under the same handle */
    struct stream *legacy;      /* the default stream */
    struct stream *streams;     /* all, the default ones included */
    struct module *modules;
    uint64_t tail;              /* V at which everything in it ends, where that is known */
    uint64_t blocking_tail;     /* the same of the streams that the legacy one waits for */
    size_t limits[CONTEXT_LIMITS];
    uint64_t limits_bytes;      /* what they take beyond their defaults */
    uint64_t local_bytes;       /* of the kernel with the most local memory that ran so far */
    struct context *peers[MAX_PEERS];
    struct context *next;
};

/* All live contexts of the process. */
extern struct context *contexts;

CUresult context_make(struct gpu *gpu, unsigned flags, unsigned api_version, bool primary, struct context **out);
/* Begins an ended primary context again. */
CUresult context_begin(struct context *context, unsigned flags);
/* Out of the list; under the lock. */
void context_unlink(struct context *context);
size_t context_default_limit(unsigned limit);
/* Takes more or less of the GPU for something of the context's that took `*has`; false: there is not as much. */
bool context_resize(struct context *context, uint64_t *has, uint64_t bytes);
/* For its id; never used again. */
uint64_t context_number(void);
/* Waits for its work and ends everything in it. Without the lock. */
void context_end(struct context *context);

#endif
