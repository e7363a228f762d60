/*
 * Hooks of what is put into a stream and is no kernel and no graph: how one is written.
 *
 * FOREIGN: no time of the GPU's (foreign_work.h). Batches end before it and begin after it. MOVED: fills and copies within the device are launches, known
 * by `key`. EITHER: one or the other, as `moved` says. A _PAIR is the function of the legacy default stream and, with the suffix, that of the thread's own;
 * `stream` is an expression of the parameters. None asks anything where nothing is limited.
 */
#ifndef VCUDA_COMPUTE_STREAM_WORK_H
#define VCUDA_COMPUTE_STREAM_WORK_H

#include "launch.h"

#define FOREIGN_PASS(symbol, stream, ...)                                                                              \
    if (compute_free() || hook_nested())                                                                               \
        return real.symbol(__VA_ARGS__);                                                                               \
    compute_foreign_begin(stream);                                                                                     \
    return compute_foreign_end(stream, DRIVER(symbol, __VA_ARGS__));

#define FOREIGN(symbol, stream, parameters, ...)                                                                       \
    CUresult symbol parameters                                                                                         \
    {                                                                                                                  \
        FOREIGN_PASS(symbol, stream, __VA_ARGS__)                                                                      \
    }

#define FOREIGN_PAIR(symbol, suffix, stream, parameters, ...)                                                          \
    FOREIGN(symbol, stream, parameters, __VA_ARGS__)                                                                   \
    FOREIGN(symbol##suffix, own_stream(stream), parameters, __VA_ARGS__)

#define EITHER(symbol, stream, moved, key, parameters, ...)                                                            \
    CUresult symbol parameters                                                                                         \
    {                                                                                                                  \
        if (compute_free() || hook_nested() || !(moved)) {                                                             \
            FOREIGN_PASS(symbol, stream, __VA_ARGS__)                                                                  \
        }                                                                                                              \
        LAUNCH_PASS(key, stream, symbol, __VA_ARGS__)                                                                  \
    }

#define EITHER_PAIR(symbol, suffix, stream, moved, key, parameters, ...)                                               \
    EITHER(symbol, stream, moved, key, parameters, __VA_ARGS__)                                                        \
    EITHER(symbol##suffix, own_stream(stream), moved, key, parameters, __VA_ARGS__)

#define MOVED_PAIR(symbol, suffix, stream, key, parameters, ...) EITHER_PAIR(symbol, suffix, stream, true, key, parameters, __VA_ARGS__)

#endif
