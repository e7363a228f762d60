/*
 * Modules, libraries, and the kernels in them. The inside, for launches and graphs.
 *
 * A module belongs to a context and pays for its image; a library belongs to the process and loads itself into a context as a module when
 * a kernel of it is first used there. A CUkernel may be passed wherever a CUfunction is expected.
 */
#ifndef VCUDA_EMULATOR_MODULE_H
#define VCUDA_EMULATOR_MODULE_H

#include "context_state.h"
#include "ptx.h"

struct library;

struct image {                  /* PTX or machine code, shared by who loaded it */
    struct ptx ptx;
    uint64_t bytes;
    _Atomic unsigned references;
};

struct function {
    struct object object;
    struct module *module;
    struct context *context;
    const struct ptx_entry *entry;
    int max_dynamic_shared;
    /* the old interface: cuFuncSetBlockShape, cuParamSet*, cuLaunch */
    unsigned block[3], shared_bytes, parameter_bytes;
    unsigned char *parameters;
    struct function *next;
};

struct global {
    const struct ptx_global *variable;
    CUdeviceptr pointer;
};

struct module {
    struct object object;
    struct context *context;
    struct image *image;
    struct library *library;    /* NULL: loaded by itself */
    uint64_t charge;
    struct function *functions;
    struct global *globals;
    unsigned global_count;
    struct module *next;
};

struct kernel {
    struct object object;
    struct library *library;
    const struct ptx_entry *entry;
    struct function *last;      /* that it meant last, in that function's context */
    struct kernel *next;
};

CUresult image_read(const void *data, const struct gpu *gpu, struct image **out);
CUresult image_read_file(const char *path, const struct gpu *gpu, struct image **out);
void image_drop(struct image *image);
CUresult module_make(struct context *context, struct image *image, struct library *library, struct module **out);
void module_end(struct module *module);
void modules_end(struct context *context);
/* The module's function of that name; made when first asked for. NULL: there is none, or no memory. */
struct function *module_function(struct module *module, const char *name);
/* What a CUfunction, which may be a CUkernel, means in the context. */
CUresult function_of(CUfunction handle, struct context *context, struct function **out);
CUresult library_module(struct library *library, struct context *context, struct module **out);

#endif
