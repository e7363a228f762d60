/* The entry points of modules ("CUDA Driver API, Module Management"). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "entry.h"
#include "module.h"

static struct module *module_of(CUmodule handle)
{
    return object_is(handle, OBJECT_MODULE) ? (struct module *)handle : NULL;
}

/* From memory or from a file. */
static CUresult load(CUmodule *out, const void *data, const char *path)
{
    struct context *context;
    struct image *image;
    struct module *module;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = out == NULL || (data == NULL && path == NULL) ? CUDA_ERROR_INVALID_VALUE : unsafe_call();
    if (error == CUDA_SUCCESS)
        error = path != NULL ? image_read_file(path, context->gpu, &image) : image_read(data, context->gpu, &image);
    if (error != CUDA_SUCCESS)
        return error;
    error = module_make(context, image, NULL, &module);
    image_drop(image);
    if (error == CUDA_SUCCESS)
        *out = (CUmodule)module;
    return error;
}

ENTRY(cuModuleLoadData)(CUmodule *out, const void *data)
{
    return load(out, data, NULL);
}

static void empty_log(unsigned count, const CUjit_option *options, void **values)
{
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            values[i] = NULL; /* bytes written */
    }
}

ENTRY(cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned int num_options, CUjit_option *options, void **option_values)
{
    if (num_options > 0 && (options == NULL || option_values == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    empty_log(num_options, options, option_values);
    return entry_cuModuleLoadData(module, image);
}

ENTRY(cuModuleLoadFatBinary)(CUmodule *module, const void *fat_cubin)
{
    return entry_cuModuleLoadData(module, fat_cubin);
}

ENTRY(cuModuleLoad)(CUmodule *module, const char *fname)
{
    return module == NULL || fname == NULL ? CUDA_ERROR_INVALID_VALUE : load(module, NULL, fname);
}

ENTRY(cuModuleUnload)(CUmodule handle)
{
    struct module *module = module_of(handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->library != NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult error = unsafe_call();
    if (error != CUDA_SUCCESS)
        return error;
    context_wait(module->context);
    module_end(module);
    return CUDA_SUCCESS;
}

ENTRY(cuModuleGetFunction)(CUfunction *function, CUmodule handle, const char *name)
{
    struct module *module = module_of(handle);
    if (function == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)module_function(module, name);
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

ENTRY(cuModuleGetGlobal_v2)(CUdeviceptr *pointer, size_t *bytes, CUmodule handle, const char *name)
{
    struct module *module = module_of(handle);
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < module->global_count; i++) {
        const struct global *global = &module->globals[i];
        if (strcmp(global->variable->name, name) != 0)
            continue;
        if (pointer != NULL)
            *pointer = global->pointer;
        if (bytes != NULL)
            *bytes = global->variable->bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* Its addresses have 32 bits, and those of the emulator 64. */
ENTRY(cuModuleGetGlobal)(CUdeviceptr_v1 *pointer, unsigned int *bytes, CUmodule module, const char *name)
{
    size_t size;
    CUresult error = entry_cuModuleGetGlobal_v2(NULL, &size, module, name);
    if (error == CUDA_SUCCESS && pointer != NULL)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS && bytes != NULL)
        *bytes = (unsigned)size;
    return error;
}

ENTRY(cuModuleGetLoadingMode)(CUmoduleLoadingMode *mode)
{
    const char *asked = getenv("CUDA_MODULE_LOADING");
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = asked != NULL && strcmp(asked, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
