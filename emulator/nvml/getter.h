/* Entry points that hand out one value of a GPU, as one line each. `v` is the view in every expression. */
#ifndef VCUDA_EMULATOR_GETTER_H
#define VCUDA_EMULATOR_GETTER_H

#include "session.h"

/* NOT_SUPPORTED where the condition does not hold. */
#define GET_IF(condition, function, type, expression)                                                                            \
    nvmlReturn_t function(nvmlDevice_t device, type *out)                                                                        \
    {                                                                                                                            \
        OPEN(v, device, out);                                                                                                    \
        if (!(condition))                                                                                                        \
            return NVML_ERROR_NOT_SUPPORTED;                                                                                     \
        *out = (type)(expression);                                                                                               \
        return NVML_SUCCESS;                                                                                                     \
    }
#define GET(function, type, expression) GET_IF(true, function, type, expression)

/* Two values. */
#define GET_PAIR_IF(condition, function, type, one, other)                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, type *first, type *second)                                                        \
    {                                                                                                                            \
        OPEN(v, device, first);                                                                                                  \
        if (second == NULL)                                                                                                      \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                                  \
        if (!(condition))                                                                                                        \
            return NVML_ERROR_NOT_SUPPORTED;                                                                                     \
        *first = (type)(one);                                                                                                    \
        *second = (type)(other);                                                                                                 \
        return NVML_SUCCESS;                                                                                                     \
    }
#define GET_PAIR(function, type, one, other) GET_PAIR_IF(true, function, type, one, other)

/* A text. */
#define GET_TEXT_IF(condition, function, expression)                                                                             \
    nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length)                                                   \
    {                                                                                                                            \
        OPEN(v, device, out);                                                                                                    \
        return (condition) ? give_text(expression, out, length) : NVML_ERROR_NOT_SUPPORTED;                                      \
    }

#endif
