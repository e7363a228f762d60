/*
 * libFuzzer: any bytes as an image of a module, machine code or PTX. What is accepted must have names that end, and what is refused an error that
 * the driver documents for images. `make -C emulator fuzz CC=clang` builds it; tests/library/test_fuzz.py gives it good images to begin with.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/machine_code.h"

enum { NEWEST_PTX = 99, CAPABILITY = 80 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(CUresult error, struct ptx *read)
{
    for (const struct ptx_entry *at = read->entries; at != NULL; at = at->next) {
        if (memchr(at->name, '\0', sizeof at->name) == NULL)
            abort();
    }
    for (const struct ptx_global *at = read->globals; at != NULL; at = at->next) {
        if (memchr(at->name, '\0', sizeof at->name) == NULL)
            abort();
    }
    switch (error) {
    case CUDA_SUCCESS:
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        break;
    default:
        abort();
    }
    ptx_free(read);
}

static void read_text(struct bytes bytes)
{
    struct ptx read;
    char *text = strndup((const char *)bytes.at, bytes.size);
    if (text == NULL)
        return;
    check(ptx_read(text, NEWEST_PTX, CAPABILITY, &read), &read);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct bytes all = {bytes, size}, chosen;
    struct ptx read;
    (void)elf_extent(all);
    check(elf_read(all, CAPABILITY, &read), &read);
    if (fat_binary_choose(all, CAPABILITY, &chosen) == CUDA_SUCCESS)
        all = chosen;
    read_text(all);
    return 0;
}
