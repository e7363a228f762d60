/*
 * How much memory a CUDA array takes: pure arithmetic over its descriptor.
 *
 * In: a descriptor. Out: which shape it is, whether its extents and flags go together, bytes. An element is at most 16 bytes;
 * memory is laid out in blocks of ARRAY_ROW_BYTES by ARRAY_ROWS, as a GPU's block-linear arrays are, so an array takes a little
 * more than width x height x depth. Not here: allocating. Invariant: an invalid descriptor has no layout.
 */
#ifndef VCUDA_EMULATOR_ARRAY_LAYOUT_H
#define VCUDA_EMULATOR_ARRAY_LAYOUT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { ARRAY_ROW_BYTES = 64, ARRAY_ROWS = 8 };

enum array_shape {
    ARRAY_1D,
    ARRAY_2D,
    ARRAY_3D,
    ARRAY_1D_LAYERED,
    ARRAY_2D_LAYERED,
    ARRAY_CUBEMAP,
    ARRAY_CUBEMAP_LAYERED,
};

struct array_format {
    uint32_t block_bytes;       /* of one block, all channels */
    uint32_t block_side;        /* texels on an edge of a block: 1, compressed formats 4 */
    uint32_t channels;          /* that the format asks for; 0: it chooses 1, 2 or 4 */
    bool planar;                /* two planes, the second half as high */
};

struct array_layout {
    enum array_shape shape;
    struct array_format format;
    uint64_t row_bytes;         /* from one row of blocks to the next */
    uint64_t slice_bytes;       /* from one depth slice or layer to the next */
    uint64_t slices;
    uint64_t bytes;             /* of all levels */
};

bool array_format_of(CUarray_format format, unsigned channels, struct array_format *out);
/* `levels` is 1 for an array that is no mipmap. */
bool array_layout_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, struct array_layout *out);
/* The descriptor of one level of a mipmap, and where it begins in the whole. */
CUDA_ARRAY3D_DESCRIPTOR array_level(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level);
uint64_t array_level_offset(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level);
unsigned array_most_levels(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

#endif
