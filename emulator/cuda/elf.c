/* ELF images with machine code; see machine_code.h. */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "machine_code.h"

#ifndef EM_CUDA
#define EM_CUDA 190
#endif

enum { OSABI_SINCE_CUDA_13 = 0x41, KERNEL = 0x10 /* in a function's st_other */ };

struct elf {
    struct bytes all, names, strings, symbols;  /* `names` of sections, `strings` of symbols */
    Elf64_Ehdr header;
};

static bool part(struct bytes all, uint64_t offset, uint64_t size, struct bytes *out)
{
    if (offset > all.size || size > all.size - offset)
        return false;
    *out = (struct bytes){all.at + offset, size};
    return true;
}

/* The text at `offset`, which ends within `strings`; NULL: it does not. */
static const char *text(struct bytes strings, uint64_t offset)
{
    struct bytes rest;
    if (!part(strings, offset, 0, &rest) || memchr(rest.at, '\0', strings.size - offset) == NULL)
        return NULL;
    return (const char *)rest.at;
}

bool elf_is(struct bytes bytes)
{
    return bytes.size >= SELFMAG && memcmp(bytes.at, ELFMAG, SELFMAG) == 0;
}

static bool read_header(struct bytes bytes, Elf64_Ehdr *out)
{
    if (!elf_is(bytes) || bytes.size < sizeof *out)
        return false;
    memcpy(out, bytes.at, sizeof *out);
    return out->e_ident[EI_CLASS] == ELFCLASS64 && out->e_machine == EM_CUDA && out->e_shentsize == sizeof(Elf64_Shdr);
}

static bool read_section(const struct elf *elf, unsigned number, Elf64_Shdr *out)
{
    struct bytes found;
    if (number >= elf->header.e_shnum || !part(elf->all, elf->header.e_shoff, (uint64_t)elf->header.e_shnum * sizeof *out, &found))
        return false;
    memcpy(out, found.at + number * sizeof *out, sizeof *out);
    return true;
}

static uint64_t later(uint64_t end, uint64_t offset, uint64_t size)
{
    uint64_t other = offset > UINT64_MAX - size ? UINT64_MAX : offset + size;
    return other > end ? other : end;
}

uint64_t elf_extent(struct bytes bytes)
{
    struct elf elf = {.all = bytes};
    Elf64_Shdr section;
    if (!read_header(bytes, &elf.header))
        return sizeof elf.header;
    uint64_t end = later(sizeof elf.header, elf.header.e_shoff, (uint64_t)elf.header.e_shnum * sizeof section);
    end = later(end, elf.header.e_phoff, (uint64_t)elf.header.e_phnum * sizeof(Elf64_Phdr));
    for (unsigned i = 0; read_section(&elf, i, &section); i++) {
        if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL)
            end = later(end, section.sh_offset, section.sh_size);
    }
    return end;
}

/* What the image is for, as its header says it: 90 for 9.0. */
static unsigned target_of(const Elf64_Ehdr *header)
{
    return header->e_ident[EI_OSABI] == OSABI_SINCE_CUDA_13 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
}

static bool section_bytes(const struct elf *elf, unsigned number, struct bytes *out)
{
    Elf64_Shdr section;
    return read_section(elf, number, &section) && section.sh_type != SHT_NOBITS && part(elf->all, section.sh_offset, section.sh_size, out);
}

static bool find_symbols(struct elf *elf)
{
    Elf64_Shdr section;
    if (!section_bytes(elf, elf->header.e_shstrndx, &elf->names))
        return false;
    for (unsigned i = 0; read_section(elf, i, &section); i++) {
        if (section.sh_type == SHT_SYMTAB)
            return part(elf->all, section.sh_offset, section.sh_size, &elf->symbols) && section_bytes(elf, section.sh_link, &elf->strings);
    }
    return false;
}

static CUresult add_kernel(struct ptx *out, const char *name)
{
    struct ptx_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    strcpy(entry->name, name);
    entry->cost = cost_by_default();
    entry->next = out->entries;
    out->entries = entry;
    return CUDA_SUCCESS;
}

static CUresult add_global(struct ptx *out, const char *name, uint64_t bytes)
{
    struct ptx_global *global = calloc(1, sizeof *global);
    if (global == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    strcpy(global->name, name);
    global->bytes = bytes;
    global->next = out->globals;
    out->globals = global;
    return CUDA_SUCCESS;
}

static bool is_data(const char *section)
{
    return strcmp(section, ".nv.global") == 0 || strcmp(section, ".nv.global.init") == 0 || strcmp(section, ".nv.constant3") == 0;
}

static bool is_text_of(const char *section, const char *kernel)
{
    static const char prefix[] = ".text.";
    return strncmp(section, prefix, strlen(prefix)) == 0 && strcmp(section + strlen(prefix), kernel) == 0;
}

static CUresult add_symbol(const struct elf *elf, const Elf64_Sym *symbol, struct ptx *out)
{
    Elf64_Shdr section;
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if ((type != STT_FUNC && type != STT_OBJECT) || symbol->st_shndx == SHN_UNDEF || symbol->st_shndx >= SHN_LORESERVE)
        return CUDA_SUCCESS;
    if (!read_section(elf, symbol->st_shndx, &section))
        return CUDA_ERROR_INVALID_IMAGE;
    const char *name = text(elf->strings, symbol->st_name), *within = text(elf->names, section.sh_name);
    if (name == NULL || within == NULL || strlen(name) >= PTX_NAME)
        return CUDA_ERROR_INVALID_IMAGE;
    if (type == STT_FUNC && (symbol->st_other & KERNEL) != 0 && is_text_of(within, name))
        return add_kernel(out, name);
    return type == STT_OBJECT && is_data(within) ? add_global(out, name, symbol->st_size) : CUDA_SUCCESS;
}

CUresult elf_read(struct bytes bytes, unsigned capability, struct ptx *out)
{
    struct elf elf = {.all = bytes};
    Elf64_Sym symbol;
    memset(out, 0, sizeof *out);
    if (!read_header(bytes, &elf.header) || elf_extent(bytes) > bytes.size || !find_symbols(&elf))
        return CUDA_ERROR_INVALID_IMAGE;
    unsigned target = target_of(&elf.header);
    if (target / 10 != capability / 10 || target > capability)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CUresult error = CUDA_SUCCESS;
    for (size_t at = 0; elf.symbols.size - at >= sizeof symbol && error == CUDA_SUCCESS; at += sizeof symbol) {
        memcpy(&symbol, elf.symbols.at + at, sizeof symbol);
        error = add_symbol(&elf, &symbol, out);
    }
    return error;
}
