/*
 * Which of our functions the linker shows. A program that asks it for a function (dlsym) and finds one takes the driver for one that has it: a runtime
 * of CUDA 12 on a driver of CUDA 11 would find cuGetProcAddress_v2 here, and rely on it.
 *
 * In: what an object of ours exports, and the driver's library behind it. Out: symbols of what the driver lacks become undefined in the object's table,
 * in this process only, and the linker goes on to the next library, as without us. Done while the object is loaded, under the linker's lock.
 * Invariant: what the driver has stays visible, for the linker would give the program the driver's own instead. So nothing is hidden that was not looked
 * for in vain, and what cannot be changed stays as it is: it says that it was not found.
 * Not here: who linked to a function with all names resolved at once (-z now) got ours before.
 */
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

/* Of the pages of a loaded object that hold `address`; PROT_NONE where it has none such. */
static int protection(const void *object, const void *address)
{
    const ElfW(Ehdr) *header = object;
    const ElfW(Phdr) *segment = (const void *)((const char *)object + header->e_phoff);
    uintptr_t offset = (uintptr_t)address - (uintptr_t)object;
    for (int i = 0; i < header->e_phnum; i++, segment++) {
        if (segment->p_type == PT_LOAD && offset - segment->p_vaddr < segment->p_memsz)
            return (segment->p_flags & PF_R ? PROT_READ : 0) | (segment->p_flags & PF_W ? PROT_WRITE : 0) |
                   (segment->p_flags & PF_X ? PROT_EXEC : 0);
    }
    return PROT_NONE;
}

static void hide(const struct vcuda_export *lacking)
{
    Dl_info found;
    ElfW(Sym) *symbol = NULL;
    if (dladdr1(lacking->function, &found, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL || strcmp(found.dli_sname, lacking->name) != 0)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)symbol & ~(page - 1);
    size_t size = (uintptr_t)(symbol + 1) - begin;
    int before = protection(found.dli_fbase, symbol);
    if (before == PROT_NONE || mprotect((void *)begin, size, before | PROT_WRITE) != 0)
        return;
    symbol->st_value = 0;
    symbol->st_shndx = SHN_UNDEF;
    mprotect((void *)begin, size, before);
}

void vcuda_hide_what_is_lacking(const char *driver, const struct vcuda_export *exports, size_t count)
{
    void *library = dlopen(driver, RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; library != NULL && i < count; i++) {
        if (dlsym(library, exports[i].name) == NULL)
            hide(&exports[i]);
    }
    dlerror();      /* ours, not the program's */
}
