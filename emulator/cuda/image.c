/*
 * Images that modules and libraries are loaded from: PTX text, machine code, fat binaries and the wrapper in which the CUDA runtime's programs have them.
 *
 * In: a pointer, with the size only if the image is a file's. Out: a `struct image`, or the driver's error. An image in memory is as long as it says
 * itself, which may be wrong: the kernel copies it, so memory that cannot be read is an error and no fault.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "machine_code.h"
#include "module.h"
#include "read_file.h"
#include "session.h"

#define WRAPPER_MARK UINT32_C(0x466243b1)

enum { MARK_BYTES = 4, EXTENT_ROUNDS = 4 };
static const uint64_t most_bytes = UINT64_C(1) << 31;

struct wrapper {
    uint32_t mark, version;
    const void *image, *unused;
};

/* The PTX version that came with a CUDA version ("PTX ISA", release notes). */
static unsigned newest_ptx(int cuda)
{
    static const unsigned char of_12[] = {80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
    unsigned major = (unsigned)cuda / 1000, minor = (unsigned)cuda % 1000 / 10;
    if (major < 12)
        return 70 + (minor < 9 ? minor : 9);
    if (major == 12)
        return of_12[minor < sizeof of_12 ? minor : sizeof of_12 - 1];
    return 90 + (major == 13 && minor < 9 ? minor : 9);
}

static unsigned capability_of(const struct gpu *gpu)
{
    return gpu->facts->capability_major * 10 + gpu->facts->capability_minor;
}

/* NULL: not all of it can be read, or there is no memory. System calls of their own, because sanitizers check what the library's functions are given. */
static unsigned char *copy(const void *from, size_t size)
{
    int file = memfd_create("image", MFD_CLOEXEC);
    unsigned char *to = malloc(size + 1);
    bool whole = file >= 0 && to != NULL && syscall(SYS_write, file, from, size) == (long)size && pread(file, to, size, 0) == (ssize_t)size;
    if (file >= 0)
        close(file);
    if (whole) {
        to[size] = '\0';
        return to;
    }
    free(to);
    return NULL;
}

/* What an image in memory that begins like this one is: its own headers say how long, and those may have to be read first. */
static CUresult copy_whole(const void *from, uint64_t (*extent)(struct bytes), struct bytes *out)
{
    uint64_t size = extent((struct bytes){NULL, 0});
    for (unsigned round = 0; round < EXTENT_ROUNDS; round++) {
        unsigned char *copied = size <= most_bytes ? copy(from, (size_t)size) : NULL;
        if (copied == NULL)
            return CUDA_ERROR_INVALID_IMAGE;
        *out = (struct bytes){copied, (size_t)size};
        uint64_t wanted = extent(*out);
        if (wanted <= size)
            return CUDA_SUCCESS;
        free(copied);
        size = wanted;
    }
    return CUDA_ERROR_INVALID_IMAGE; /* it changes meanwhile */
}

static CUresult copy_text(const char *text, struct bytes *out)
{
    char *copied = strdup(text);
    *out = (struct bytes){(unsigned char *)copied, copied == NULL ? 0 : strlen(copied)};
    return copied == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* `out` is the caller's to free. */
static CUresult from_memory(const void *data, struct bytes *out)
{
    struct bytes mark = {data, strnlen(data, MARK_BYTES)};
    uint32_t number = 0;
    if (mark.size == MARK_BYTES)
        memcpy(&number, data, sizeof number);
    if (number == WRAPPER_MARK) {
        struct wrapper *wrapper = (struct wrapper *)copy(data, sizeof *wrapper);
        const void *image = wrapper == NULL ? NULL : wrapper->image;
        free(wrapper);
        return image == NULL ? CUDA_ERROR_INVALID_IMAGE : copy_whole(image, fat_binary_extent, out);
    }
    if (elf_is(mark))
        return copy_whole(data, elf_extent, out);
    if (fat_binary_is(mark))
        return copy_whole(data, fat_binary_extent, out);
    return copy_text(data, out);
}

static CUresult read_text(struct bytes text, const struct gpu *gpu, struct ptx *out)
{
    char *ended = strndup((const char *)text.at, text.size);
    if (ended == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = ptx_read(ended, newest_ptx(driver.cuda), capability_of(gpu), out);
    free(ended);
    return error;
}

static CUresult read_bytes(struct bytes bytes, const struct gpu *gpu, struct image *image)
{
    if (fat_binary_is(bytes)) {
        CUresult error = fat_binary_choose(bytes, capability_of(gpu), &bytes);
        if (error != CUDA_SUCCESS)
            return error;
    }
    image->bytes = bytes.size;
    return elf_is(bytes) ? elf_read(bytes, capability_of(gpu), &image->ptx) : read_text(bytes, gpu, &image->ptx);
}

static CUresult make(struct bytes bytes, const struct gpu *gpu, struct image **out)
{
    struct image *image = calloc(1, sizeof *image);
    if (image == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = read_bytes(bytes, gpu, image);
    atomic_store(&image->references, 1);
    if (error == CUDA_SUCCESS)
        *out = image;
    else
        image_drop(image);
    return error;
}

CUresult image_read(const void *data, const struct gpu *gpu, struct image **out)
{
    struct bytes bytes;
    CUresult error = from_memory(data, &bytes);
    if (error != CUDA_SUCCESS)
        return error;
    error = make(bytes, gpu, out);
    free((void *)bytes.at);
    return error;
}

CUresult image_read_file(const char *path, const struct gpu *gpu, struct image **out)
{
    char *content;
    size_t size;
    CUresult error = read_whole_file(path, &content, &size);
    if (error != CUDA_SUCCESS)
        return error;
    error = make((struct bytes){(unsigned char *)content, size}, gpu, out);
    free(content);
    return error;
}

void image_drop(struct image *image)
{
    if (atomic_fetch_sub(&image->references, 1) > 1)
        return;
    ptx_free(&image->ptx);
    free(image);
}
