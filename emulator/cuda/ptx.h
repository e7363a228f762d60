/*
 * Reading PTX text: which kernels and global variables it has, what parameters the kernels take and what they cost on the emulated GPU.
 *
 * In: NUL-terminated text. Out: a list of entries, or which error the driver's compiler would report. Instructions are not looked at. A comment in a kernel's body
 * is the cost directive: `// vcuda-emulator: ns = A [* param N] [+ B] [per thread] [wide|narrow] [ranks = N]`. Not here: what a module is.
 */
#ifndef VCUDA_EMULATOR_PTX_H
#define VCUDA_EMULATOR_PTX_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { PTX_NAME = 2048 /* names of C++ are long */, PTX_PARAMETERS = 64, PTX_PARAMETER_BYTES = 32764 };

enum kernel_width { WIDTH_BY_THREADS, WIDTH_WIDE, WIDTH_NARROW };

struct kernel_cost {
    double factor;              /* ns; times the parameter where there is one */
    int parameter;              /* -1: none */
    uint64_t constant_ns;
    bool per_thread;
    enum kernel_width width;
    unsigned ranks;             /* it ends when it began in so many processes; 0: it waits for nobody */
};

struct ptx_parameter {
    uint32_t offset, size;
};

struct ptx_entry {
    char name[PTX_NAME];
    unsigned parameter_count, parameter_bytes;
    struct ptx_parameter parameters[PTX_PARAMETERS];
    unsigned max_threads;       /* .maxntid or .reqntid; 0: not given */
    struct kernel_cost cost;
    uint64_t local_bytes;       /* of each thread, .local */
    struct ptx_entry *next;
};

struct ptx_global {
    char name[PTX_NAME];
    uint64_t bytes;
    struct ptx_global *next;
};

struct ptx {
    unsigned version, target;   /* 84 for 8.4; 90 for sm_90 */
    struct ptx_entry *entries;
    struct ptx_global *globals;
};

/* Of a kernel that says nothing: VCUDA_EMULATOR_KERNEL_NS. */
struct kernel_cost cost_by_default(void);
/* `newest` is the PTX version that the driver knows, `capability` 90 for 9.0. ptx_free() in any case. */
CUresult ptx_read(const char *text, unsigned newest, unsigned capability, struct ptx *out);
void ptx_free(struct ptx *ptx);

#endif
