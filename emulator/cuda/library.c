/* Libraries: images that belong to no context ("CUDA Driver API, Library Management"). Loaded into a context by the first use of a kernel there. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "entry.h"
#include "lock.h"
#include "module.h"
#include "session.h"

struct library {
    struct object object;
    struct image *image;
    struct kernel *kernels;
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static struct library *library_of(CUlibrary handle)
{
    return object_is(handle, OBJECT_LIBRARY) ? (struct library *)handle : NULL;
}

static struct module *loaded_module(const struct library *library, struct context *context)
{
    struct module *found = NULL;
    driver_lock();
    for (struct module *at = context->modules; at != NULL && found == NULL; at = at->next) {
        if (at->library == library)
            found = at;
    }
    driver_unlock();
    return found;
}

CUresult library_module(struct library *library, struct context *context, struct module **out)
{
    CUresult error = CUDA_SUCCESS;
    if (!object_is(library, OBJECT_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&loading);
    *out = loaded_module(library, context);
    if (*out == NULL)
        error = module_make(context, library->image, library, out);
    pthread_mutex_unlock(&loading);
    return error;
}

/* A library belongs to no device: any that the process sees decides what its image may ask for. From memory or from a file. */
static CUresult load(CUlibrary *out, const void *code, const char *path)
{
    struct library *library = object_begin(OBJECT_LIBRARY, sizeof *library);
    if (library == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = path != NULL ? image_read_file(path, &driver.gpus[0], &library->image) : image_read(code, &driver.gpus[0], &library->image);
    if (error == CUDA_SUCCESS)
        *out = (CUlibrary)library;
    else
        object_end(library);
    return error;
}

static bool options_fit(unsigned jit_count, const void *jit, const void *jit_values, unsigned count, const void *options, const void *values)
{
    return (jit_count == 0 || (jit != NULL && jit_values != NULL)) && (count == 0 || (options != NULL && values != NULL));
}

ENTRY(cuLibraryLoadData)(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_options_values, unsigned int num_jit_options,
                         CUlibraryOption *library_options, void **library_option_values, unsigned int num_library_options)
{
    if (library == NULL || code == NULL ||
        !options_fit(num_jit_options, jit_options, jit_options_values, num_library_options, library_options, library_option_values))
        return CUDA_ERROR_INVALID_VALUE;
    return load(library, code, NULL);
}

ENTRY(cuLibraryLoadFromFile)(CUlibrary *library, const char *file_name, CUjit_option *jit_options, void **jit_options_values,
                             unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
                             unsigned int num_library_options)
{
    if (library == NULL || file_name == NULL ||
        !options_fit(num_jit_options, jit_options, jit_options_values, num_library_options, library_options, library_option_values))
        return CUDA_ERROR_INVALID_VALUE;
    return load(library, NULL, file_name);
}

static struct module *any_module(const struct library *library)
{
    struct module *found = NULL;
    driver_lock();
    for (struct context *context = contexts; context != NULL && found == NULL; context = context->next) {
        for (struct module *at = context->modules; at != NULL && found == NULL; at = at->next) {
            if (at->library == library)
                found = at;
        }
    }
    driver_unlock();
    return found;
}

static void drop_kernels(struct library *library)
{
    for (struct kernel *at = library->kernels, *following; at != NULL; at = following) {
        following = at->next;
        object_end(at);
    }
}

ENTRY(cuLibraryUnload)(CUlibrary handle)
{
    struct library *library = library_of(handle);
    CUresult error = library == NULL ? CUDA_ERROR_INVALID_HANDLE : unsafe_call();
    if (error != CUDA_SUCCESS)
        return error;
    for (struct module *at = any_module(library); at != NULL; at = any_module(library)) {
        context_wait(at->context);
        module_end(at);
    }
    driver_lock();
    drop_kernels(library);
    driver_unlock();
    image_drop(library->image);
    object_end(library);
    return CUDA_SUCCESS;
}

static struct kernel *find_kernel(struct library *library, const struct ptx_entry *entry)
{
    for (struct kernel *at = library->kernels; at != NULL; at = at->next) {
        if (at->entry == entry)
            return at;
    }
    struct kernel *made = object_begin(OBJECT_KERNEL, sizeof *made);
    if (made == NULL)
        return NULL;
    made->library = library;
    made->entry = entry;
    made->next = library->kernels;
    library->kernels = made;
    return made;
}

ENTRY(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary handle, const char *name)
{
    struct library *library = library_of(handle);
    if (kernel == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    for (const struct ptx_entry *at = library->image->ptx.entries; at != NULL; at = at->next) {
        if (strcmp(at->name, name) != 0)
            continue;
        driver_lock();
        *kernel = (CUkernel)find_kernel(library, at);
        driver_unlock();
        return *kernel == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

ENTRY(cuLibraryGetModule)(CUmodule *mod, CUlibrary handle)
{
    struct library *library = library_of(handle);
    struct context *context;
    struct module *module;
    if (mod == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = library_module(library, context, &module);
    if (error == CUDA_SUCCESS)
        *mod = (CUmodule)module;
    return error;
}

ENTRY(cuKernelGetFunction)(CUfunction *func, CUkernel kernel)
{
    struct context *context;
    struct function *function;
    if (func == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = function_of((CUfunction)kernel, context, &function);
    if (error == CUDA_SUCCESS)
        *func = (CUfunction)function;
    return error;
}

ENTRY(cuLibraryGetGlobal)(CUdeviceptr *pointer, size_t *bytes, CUlibrary handle, const char *name)
{
    CUmodule module;
    CUresult error = name == NULL ? CUDA_ERROR_INVALID_VALUE : entry_cuLibraryGetModule(&module, handle);
    return error == CUDA_SUCCESS ? entry_cuModuleGetGlobal_v2(pointer, bytes, module, name) : error;
}

/* No image here has managed variables. */
ENTRY(cuLibraryGetManaged)(CUdeviceptr *pointer, size_t *bytes, CUlibrary handle, const char *name)
{
    (void)pointer;
    (void)bytes;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return library_of(handle) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_FOUND;
}

ENTRY(cuFuncLoad)(CUfunction handle)
{
    struct context *context;
    struct function *function;
    CUresult error = context_require(&context);
    return error == CUDA_SUCCESS ? function_of(handle, context, &function) : error;
}
