/*
 * Sizes; see sizes.h. Arrays lie in tiles of 64 bytes and 8 rows. An array's format says bits per element; block-compressed formats have blocks
 * of 4 x 4 elements, some formats have their channels in the name and some share their colour between elements.
 */
#include "sizes.h"

#include <stdbool.h>

#include "cuda.h"

enum { SMALL = 512, PAGE = 2 << 20, PITCH = 512, TILE_BYTES = 64, TILE_ROWS = 8 };

struct format {
    uint8_t bits;           /* of an element */
    uint8_t per_channel;    /* 1: times the number of channels */
    uint8_t block;          /* elements are stored in squares of this edge */
};

static const struct format formats[256] = {
    [0x01] = {8, 1, 1}, [0x02] = {16, 1, 1}, [0x03] = {32, 1, 1},                   /* unsigned integers */
    [0x08] = {8, 1, 1}, [0x09] = {16, 1, 1}, [0x0a] = {32, 1, 1},                   /* signed integers */
    [0x10] = {16, 1, 1}, [0x20] = {32, 1, 1},                                       /* half, float */
    [0x50] = {32, 0, 1},                                                            /* 10, 10, 10, 2 bits */
    [0xb0] = {12, 0, 1}, [0x9f] = {24, 0, 1}, [0xa1] = {24, 0, 1},                  /* NV12, P010, P016 */
    [0xa2] = {16, 0, 1}, [0xa3] = {32, 0, 1}, [0xa4] = {32, 0, 1},                  /* NV16, P210, P216 */
    [0xa5] = {16, 0, 1}, [0xa6] = {32, 0, 1}, [0xa7] = {32, 0, 1},                  /* YUY2, Y210, Y216 */
    [0xa8] = {32, 0, 1}, [0xa9] = {32, 0, 1}, [0xb1] = {64, 0, 1},                  /* AYUV, Y410, Y416 */
    [0xb2] = {24, 0, 1}, [0xb3] = {48, 0, 1}, [0xb4] = {24, 0, 1}, [0xb5] = {48, 0, 1},     /* 4:4:4 planes */
    [0xc0] = {8, 0, 1}, [0xc1] = {16, 0, 1}, [0xc2] = {32, 0, 1},                   /* normalised, 8 bits x 1, 2, 4 */
    [0xc3] = {16, 0, 1}, [0xc4] = {32, 0, 1}, [0xc5] = {64, 0, 1},                  /* normalised, 16 bits x 1, 2, 4 */
    [0xc6] = {8, 0, 1}, [0xc7] = {16, 0, 1}, [0xc8] = {32, 0, 1},
    [0xc9] = {16, 0, 1}, [0xca] = {32, 0, 1}, [0xcb] = {64, 0, 1},
    [0x91] = {4, 0, 4}, [0x92] = {4, 0, 4}, [0x97] = {4, 0, 4}, [0x98] = {4, 0, 4}, /* BC1, BC4 */
    [0x93] = {8, 0, 4}, [0x94] = {8, 0, 4}, [0x95] = {8, 0, 4}, [0x96] = {8, 0, 4}, /* BC2, BC3 */
    [0x99] = {8, 0, 4}, [0x9a] = {8, 0, 4}, [0x9b] = {8, 0, 4}, [0x9c] = {8, 0, 4}, /* BC5, BC6H */
    [0x9d] = {8, 0, 4}, [0x9e] = {8, 0, 4},                                         /* BC7 */
};
static const struct format unknown_format = {32, 1, 1};

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - (unit - 1) ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

static uint64_t at_least_one(uint64_t count)
{
    return count == 0 ? 1 : count;
}

uint64_t sizes_charge(uint64_t bytes)
{
    return round_up(bytes, bytes >= PAGE / 2 ? PAGE : SMALL);
}

uint64_t sizes_pooled(uint64_t bytes)
{
    return round_up(bytes, SMALL);
}

uint64_t sizes_rows(uint64_t pitch, uint64_t height)
{
    return times(pitch, at_least_one(height));
}

uint64_t sizes_pitched(uint64_t width_bytes, uint64_t height)
{
    return sizes_rows(round_up(width_bytes, PITCH), height);
}

static struct format format_of(unsigned format)
{
    return format < 256 && formats[format].bits != 0 ? formats[format] : unknown_format;
}

/* One level, all its layers. Layers stay as many at every level; a volume's depth halves. */
static uint64_t level_bytes(const struct array_shape *shape, unsigned level)
{
    struct format format = format_of(shape->format);
    bool layered = shape->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t bits = times(format.bits, format.per_channel ? at_least_one(shape->channels) : 1);
    uint64_t width = round_up(at_least_one(shape->width >> level), format.block);
    uint64_t height = round_up(at_least_one(shape->height >> level), format.block);
    uint64_t depth = at_least_one(layered ? shape->depth : shape->depth >> level);
    uint64_t row_bits = times(width, bits);
    uint64_t row = row_bits == UINT64_MAX ? UINT64_MAX : round_up(round_up(row_bits, 8) / 8, TILE_BYTES);

    return times(times(row, shape->height == 0 ? 1 : round_up(height, TILE_ROWS)), depth);
}

uint64_t sizes_array(const struct array_shape *shape)
{
    uint64_t bytes = 0;

    if (shape->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned level = 0; level < at_least_one(shape->levels) && level < 64; level++)
        bytes = plus(bytes, level_bytes(shape, level));
    return bytes;
}
