/*
 * Reading machine code: an ELF image for one kind of GPU (cubin), or a fat binary that holds several images and PTX.
 *
 * In: bytes, of which any may be wrong. Out: the kernels and global variables that the symbol table names, in the form in which PTX's are; or the
 * error that the driver documents. Instructions are not looked at and parameters not declared. Source of formats: "CUDA Binary Utilities", LLVM's
 * BinaryFormat/ELF.h, and ZLUDA's description of fat binaries. Not here: where the bytes come from (image.c).
 */
#ifndef VCUDA_EMULATOR_MACHINE_CODE_H
#define VCUDA_EMULATOR_MACHINE_CODE_H

#include "ptx.h"

struct bytes {
    const unsigned char *at;
    size_t size;
};

bool elf_is(struct bytes bytes);
/* How long the image is by its own headers, as far as `bytes` has them: more than `bytes` has, if that is to be read first. */
uint64_t elf_extent(struct bytes bytes);
/* `capability` is the GPU's, 90 for 9.0. ptx_free() in any case. */
CUresult elf_read(struct bytes bytes, unsigned capability, struct ptx *out);

bool fat_binary_is(struct bytes bytes);
uint64_t fat_binary_extent(struct bytes bytes);
/* The ELF image or PTX text in it that suits the GPU best. Compressed ones are passed over. */
CUresult fat_binary_choose(struct bytes bytes, unsigned capability, struct bytes *out);

#endif
