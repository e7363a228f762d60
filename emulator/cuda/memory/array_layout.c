/*
 * See array_layout.h. The greatest extents are those of compute capability 8.0 and 9.0 (CUDA programming guide, technical
 * specifications).
 */
#include "array_layout.h"

#include <stddef.h>

enum { FACES = 6, MOST_BLOCK_BYTES = 16 };

struct format_row {
    uint32_t code, block_bytes, block_side, channels;
    bool planar;
};

/* Bytes of one channel where `channels` is 0, of a block of all channels elsewhere. Codes as CUarray_format. */
static const struct format_row formats[] = {
    {0x01, 1, 1, 0, false}, {0x02, 2, 1, 0, false}, {0x03, 4, 1, 0, false},                         /* unsigned integers */
    {0x08, 1, 1, 0, false}, {0x09, 2, 1, 0, false}, {0x0a, 4, 1, 0, false},                         /* signed integers */
    {0x10, 2, 1, 0, false}, {0x20, 4, 1, 0, false},                                                 /* half, float */
    {0xc0, 1, 1, 1, false}, {0xc1, 2, 1, 2, false}, {0xc2, 4, 1, 4, false},                         /* unorm 8 */
    {0xc3, 2, 1, 1, false}, {0xc4, 4, 1, 2, false}, {0xc5, 8, 1, 4, false},                         /* unorm 16 */
    {0xc6, 1, 1, 1, false}, {0xc7, 2, 1, 2, false}, {0xc8, 4, 1, 4, false},                         /* snorm 8 */
    {0xc9, 2, 1, 1, false}, {0xca, 4, 1, 2, false}, {0xcb, 8, 1, 4, false},                         /* snorm 16 */
    {0x91, 8, 4, 4, false}, {0x92, 8, 4, 4, false}, {0x93, 16, 4, 4, false}, {0x94, 16, 4, 4, false},   /* BC1, BC2 */
    {0x95, 16, 4, 4, false}, {0x96, 16, 4, 4, false}, {0x97, 8, 4, 1, false}, {0x98, 8, 4, 1, false},   /* BC3, BC4 */
    {0x99, 16, 4, 2, false}, {0x9a, 16, 4, 2, false}, {0x9b, 16, 4, 3, false}, {0x9c, 16, 4, 3, false}, /* BC5, BC6H */
    {0x9d, 16, 4, 4, false}, {0x9e, 16, 4, 4, false},                                               /* BC7 */
    {0x50, 4, 1, 4, false}, {0xb0, 1, 1, 3, true},                                                  /* 10-10-10-2, NV12 */
};

struct extents {
    uint64_t width, height, depth;
};

/* [shape][0: any, 1: with surface access, 2: mipmapped] */
static const struct extents most[][3] = {
    [ARRAY_1D] = {{131072, 0, 0}, {32768, 0, 0}, {32768, 0, 0}},
    [ARRAY_2D] = {{131072, 65536, 0}, {131072, 65536, 0}, {32768, 32768, 0}},
    [ARRAY_3D] = {{16384, 16384, 16384}, {16384, 16384, 16384}, {16384, 16384, 16384}},
    [ARRAY_1D_LAYERED] = {{32768, 0, 2048}, {32768, 0, 2048}, {32768, 0, 2048}},
    [ARRAY_2D_LAYERED] = {{32768, 32768, 2048}, {32768, 32768, 2048}, {32768, 32768, 2048}},
    [ARRAY_CUBEMAP] = {{32768, 32768, FACES}, {32768, 32768, FACES}, {32768, 32768, FACES}},
    [ARRAY_CUBEMAP_LAYERED] = {{32768, 32768, 2046}, {32768, 32768, 2046}, {32768, 32768, 2046}},
};

static const uint64_t most_gathered = 32768;

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

bool array_format_of(CUarray_format format, unsigned channels, struct array_format *out)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const struct format_row *row = &formats[i];
        bool free_choice = row->channels == 0 && (channels == 1 || channels == 2 || channels == 4);
        if (row->code != (uint32_t)format || !(free_choice || (row->channels != 0 && row->channels == channels)))
            continue;
        uint32_t bytes = row->block_bytes * (row->channels == 0 ? channels : 1);
        *out = (struct array_format){bytes, row->block_side, row->channels, row->planar};
        return bytes <= MOST_BLOCK_BYTES;
    }
    return false;
}

static bool shape_of(const CUDA_ARRAY3D_DESCRIPTOR *of, enum array_shape *shape)
{
    bool layered = of->Flags & CUDA_ARRAY3D_LAYERED, cubemap = of->Flags & CUDA_ARRAY3D_CUBEMAP;
    if (of->Width == 0)
        return false;
    if (cubemap) {
        *shape = layered ? ARRAY_CUBEMAP_LAYERED : ARRAY_CUBEMAP;
        return of->Width == of->Height && of->Depth != 0 && (layered ? of->Depth % FACES == 0 : of->Depth == FACES);
    }
    if (layered) {
        *shape = of->Height == 0 ? ARRAY_1D_LAYERED : ARRAY_2D_LAYERED;
        return of->Depth != 0;
    }
    *shape = of->Depth != 0 ? ARRAY_3D : of->Height != 0 ? ARRAY_2D : ARRAY_1D;
    return of->Depth == 0 || of->Height != 0;
}

static bool within(const CUDA_ARRAY3D_DESCRIPTOR *of, const struct extents *limit)
{
    return of->Width <= limit->width && of->Height <= limit->height && of->Depth <= limit->depth;
}

static bool extents_fit(const CUDA_ARRAY3D_DESCRIPTOR *of, enum array_shape shape, unsigned levels)
{
    bool gather = of->Flags & CUDA_ARRAY3D_TEXTURE_GATHER;
    if (gather && (shape != ARRAY_2D || of->Width > most_gathered || of->Height > most_gathered))
        return false;
    if (of->Flags & CUDA_ARRAY3D_SURFACE_LDST && !within(of, &most[shape][1]))
        return false;
    return within(of, &most[shape][levels > 1 ? 2 : 0]);
}

static const unsigned known_flags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                    CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE |
                                    CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

static void measure(const CUDA_ARRAY3D_DESCRIPTOR *of, struct array_layout *out)
{
    uint64_t side = out->format.block_side, columns = (of->Width + side - 1) / side;
    uint64_t rows = ((of->Height == 0 ? 1 : of->Height) + side - 1) / side;
    if (out->format.planar)
        rows += (rows + 1) / 2;
    out->row_bytes = round_up(columns * out->format.block_bytes, ARRAY_ROW_BYTES);
    out->slice_bytes = out->row_bytes * (of->Height == 0 ? 1 : round_up(rows, ARRAY_ROWS));
    out->slices = of->Depth == 0 ? 1 : of->Depth;
    out->bytes = out->slice_bytes * out->slices;
}

static size_t halved(size_t extent, unsigned level)
{
    size_t smaller = extent >> level;
    return extent != 0 && smaller == 0 ? 1 : smaller;
}

CUDA_ARRAY3D_DESCRIPTOR array_level(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR out = *descriptor;
    bool layers = out.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    out.Width = halved(out.Width, level);
    out.Height = halved(out.Height, level);
    out.Depth = layers ? out.Depth : halved(out.Depth, level);
    return out;
}

unsigned array_most_levels(const CUDA_ARRAY3D_DESCRIPTOR *of)
{
    bool layers = of->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t longest = of->Width > of->Height ? of->Width : of->Height;
    unsigned levels = 1;
    if (!layers && of->Depth > longest)
        longest = of->Depth;
    while (longest >>= 1)
        levels++;
    return levels;
}

uint64_t array_level_offset(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level)
{
    uint64_t offset = 0;
    struct array_layout one;
    array_format_of(descriptor->Format, descriptor->NumChannels, &one.format);
    for (unsigned i = 0; i < level; i++) {
        CUDA_ARRAY3D_DESCRIPTOR at = array_level(descriptor, i);
        measure(&at, &one);
        offset += one.bytes;
    }
    return offset;
}

bool array_layout_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, struct array_layout *out)
{
    *out = (struct array_layout){.shape = ARRAY_1D};
    if (descriptor->Flags & ~known_flags || !array_format_of(descriptor->Format, descriptor->NumChannels, &out->format) ||
        !shape_of(descriptor, &out->shape) || !extents_fit(descriptor, out->shape, levels))
        return false;
    if (levels == 0 || (out->format.planar && out->shape != ARRAY_2D))
        return false;
    measure(descriptor, out);
    if (levels > 1)
        out->bytes = array_level_offset(descriptor, levels);
    return true;
}
