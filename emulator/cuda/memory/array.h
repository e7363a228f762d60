/*
 * CUDA arrays and mipmaps behind their handles.
 *
 * In: descriptors. Out: handles, and for copies the address of an element. A handle is the address of an array object that is
 * checked against those there are. A level of a mipmap is an array of its own that ends with the mipmap. Under memory_lock().
 * Invariant: an array without memory (sparse, deferred) has no allocation.
 */
#ifndef VCUDA_EMULATOR_ARRAY_H
#define VCUDA_EMULATOR_ARRAY_H

#include "allocation.h"
#include "array_layout.h"

struct array {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct array_layout layout;
    unsigned levels;            /* 1: no mipmap */
    bool mipmap;
    struct array *whole;        /* of a level: the mipmap that it is one of */
    unsigned level;
    struct allocation *allocation;
    uint64_t start;             /* address of its first element; 0: no memory */
    struct array *next;
};

struct array *array_find(const void *handle, bool mipmap);  /* NULL: none such */
void array_release(struct allocation *allocation);          /* with everything that refers to it */
void sparse_array_gone(const struct array *array);           /* what was put behind it is not there any more */

#endif
