/* See module.h. The entry points are in module_calls.c and library.c, images in image.c. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"
#include "memory.h"
#include "session.h"
#include "usage.h"

enum { IMAGE_UNIT = 2 << 20 };

static void drop_globals(struct module *module)
{
    for (unsigned i = 0; i < module->global_count; i++)
        memory_global_drop(module->globals[i].pointer);
    free(module->globals);
    module->globals = NULL;
    module->global_count = 0;
}

static CUresult make_globals(struct module *module)
{
    size_t count = 0;
    for (const struct ptx_global *at = module->image->ptx.globals; at != NULL; at = at->next)
        count++;
    if (count == 0)
        return CUDA_SUCCESS;
    module->globals = calloc(count, sizeof *module->globals);
    if (module->globals == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (const struct ptx_global *at = module->image->ptx.globals; at != NULL; at = at->next) {
        struct global *global = &module->globals[module->global_count];
        global->variable = at;
        CUresult error = memory_global_make(module->context, at->bytes == 0 ? 1 : at->bytes, &global->pointer);
        if (error != CUDA_SUCCESS)
            return error;
        module->global_count++;
    }
    return CUDA_SUCCESS;
}

CUresult module_make(struct context *context, struct image *image, struct library *library, struct module **out)
{
    uint64_t charge = (image->bytes + IMAGE_UNIT - 1) / IMAGE_UNIT * IMAGE_UNIT;
    struct module *module = object_begin(OBJECT_MODULE, sizeof *module);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->context = context;
    module->image = image;
    module->library = library;
    atomic_fetch_add(&image->references, 1);
    CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
    if (usage_take(context_device(context), charge)) {
        module->charge = charge;
        error = make_globals(module);
    }
    driver_lock();
    module->next = context->modules;
    context->modules = module;
    driver_unlock();
    if (error == CUDA_SUCCESS)
        *out = module;
    else
        module_end(module);
    return error;
}

static void drop_functions(struct module *module)
{
    for (struct function *at = module->functions, *following; at != NULL; at = following) {
        following = at->next;
        free(at->parameters);
        object_end(at);
    }
}

void module_end(struct module *module)
{
    driver_lock();
    for (struct module **at = &module->context->modules; *at != NULL; at = &(*at)->next) {
        if (*at == module) {
            *at = module->next;
            break;
        }
    }
    drop_functions(module);
    driver_unlock();
    drop_globals(module);
    if (module->charge != 0)
        usage_give(context_device(module->context), module->charge);
    image_drop(module->image);
    object_end(module);
}

void modules_end(struct context *context)
{
    while (context->modules != NULL)
        module_end(context->modules);
}

static const struct ptx_entry *find_entry(const struct image *image, const char *name)
{
    for (const struct ptx_entry *at = image->ptx.entries; at != NULL; at = at->next) {
        if (strcmp(at->name, name) == 0)
            return at;
    }
    return NULL;
}

static struct function *make_function(struct module *module, const char *name)
{
    const struct ptx_entry *entry = find_entry(module->image, name);
    struct function *function = entry == NULL ? NULL : object_begin(OBJECT_FUNCTION, sizeof *function);
    if (function == NULL)
        return NULL;
    function->module = module;
    function->context = module->context;
    function->entry = entry;
    function->block[0] = function->block[1] = function->block[2] = 1;
    function->next = module->functions;
    module->functions = function;
    return function;
}

struct function *module_function(struct module *module, const char *name)
{
    struct function *found = NULL;
    driver_lock();
    for (struct function *at = module->functions; at != NULL && found == NULL; at = at->next) {
        if (strcmp(at->entry->name, name) == 0)
            found = at;
    }
    if (found == NULL)
        found = make_function(module, name);
    driver_unlock();
    return found;
}

/* Where the kernel's library has to be loaded into the context first, which takes memory. */
static CUresult resolve_kernel(struct kernel *kernel, struct context *context, struct function **out)
{
    struct module *module;
    struct function *last = kernel->last;
    if (last != NULL && object_is(last, OBJECT_FUNCTION) && last->context == context && last->entry == kernel->entry) {
        *out = last;
        return CUDA_SUCCESS;
    }
    CUresult error = library_module(kernel->library, context, &module);
    if (error != CUDA_SUCCESS)
        return error;
    *out = kernel->last = module_function(module, kernel->entry->name);
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult function_of(CUfunction handle, struct context *context, struct function **out)
{
    if (object_is(handle, OBJECT_FUNCTION)) {
        *out = (struct function *)handle;
        return CUDA_SUCCESS;
    }
    if (object_is(handle, OBJECT_KERNEL))
        return resolve_kernel((struct kernel *)handle, context, out);
    return handle == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
