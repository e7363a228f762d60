/* Fat binaries: a header, then images one behind the other, each with a header of its own; see machine_code.h. */
#include <stdint.h>
#include <string.h>

#include "machine_code.h"

#define FAT_MARK UINT32_C(0xba55ed50)

enum { KIND_PTX = 1, KIND_ELF = 2, COMPRESSED = 0x2000 | 0x8000 /* LZ4, Zstandard */ };

struct head {
    uint32_t mark;
    uint16_t version, size;
    uint64_t rest;              /* of bytes behind the header */
};

struct image_head {
    uint16_t kind, version;
    uint32_t size, padded_size, unknown, compressed_size, more_unknown[2], target, bits, unknown_too;
    uint64_t flags;
};

struct candidate {
    struct image_head head;
    struct bytes bytes;
};

bool fat_binary_is(struct bytes bytes)
{
    uint32_t mark = 0;
    if (bytes.size >= sizeof mark)
        memcpy(&mark, bytes.at, sizeof mark);
    return mark == FAT_MARK;
}

static bool read_head(struct bytes bytes, struct head *out)
{
    if (!fat_binary_is(bytes) || bytes.size < sizeof *out)
        return false;
    memcpy(out, bytes.at, sizeof *out);
    return out->size >= sizeof *out;
}

uint64_t fat_binary_extent(struct bytes bytes)
{
    struct head head;
    if (!read_head(bytes, &head))
        return sizeof head;
    return head.rest > UINT64_MAX - head.size ? UINT64_MAX : head.size + head.rest;
}

/* Takes the next image off `rest`. */
static bool take(struct bytes *rest, struct candidate *out)
{
    if (rest->size < sizeof out->head)
        return false;
    memcpy(&out->head, rest->at, sizeof out->head);
    uint64_t all = (uint64_t)out->head.size + out->head.padded_size;
    if (out->head.size < sizeof out->head || all > rest->size)
        return false;
    out->bytes = (struct bytes){rest->at + out->head.size, out->head.padded_size};
    *rest = (struct bytes){rest->at + all, (size_t)(rest->size - all)};
    return true;
}

static bool suits(const struct image_head *head, unsigned capability)
{
    if (head->target > capability || (head->flags & COMPRESSED) != 0)
        return false;
    return head->kind == KIND_PTX || (head->kind == KIND_ELF && head->target / 10 == capability / 10);
}

static bool better(const struct image_head *head, const struct image_head *best)
{
    return best->kind == 0 || head->kind > best->kind || (head->kind == best->kind && head->target > best->target);
}

CUresult fat_binary_choose(struct bytes bytes, unsigned capability, struct bytes *out)
{
    struct head head;
    struct candidate best = {.head = {.kind = 0}}, next;
    if (!read_head(bytes, &head) || fat_binary_extent(bytes) > bytes.size)
        return CUDA_ERROR_INVALID_IMAGE;
    struct bytes rest = {bytes.at + head.size, (size_t)head.rest};
    while (rest.size > 0) {
        if (!take(&rest, &next))
            return CUDA_ERROR_INVALID_IMAGE;
        if (suits(&next.head, capability) && better(&next.head, &best.head))
            best = next;
    }
    *out = best.bytes;
    return best.head.kind != 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}
