/*
 * Modules: code and globals take device memory that no allocation shows. In: the application's calls. Out: the driver's answer, always; the
 * reconciliation of overhead hears of it.
 */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "overhead.h"

static CUresult changed(CUresult error)
{
    if (error == CUDA_SUCCESS && !hook_nested() && account_needed())
        overhead_grew();
    return error;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    return changed(DRIVER(cuModuleLoad, module, fname));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return changed(DRIVER(cuModuleLoadData, module, image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options, CUjit_option *options, void **option_values)
{
    return changed(DRIVER(cuModuleLoadDataEx, module, image, num_options, options, option_values));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fat_cubin)
{
    return changed(DRIVER(cuModuleLoadFatBinary, module, fat_cubin));
}

CUresult cuModuleUnload(CUmodule module)
{
    return changed(DRIVER(cuModuleUnload, module));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_options_values,
                           unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
                           unsigned int num_library_options)
{
    return changed(DRIVER(cuLibraryLoadData, library, code, jit_options, jit_options_values, num_jit_options, library_options,
                          library_option_values, num_library_options));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file_name, CUjit_option *jit_options, void **jit_options_values,
                               unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
                               unsigned int num_library_options)
{
    return changed(DRIVER(cuLibraryLoadFromFile, library, file_name, jit_options, jit_options_values, num_jit_options, library_options,
                          library_option_values, num_library_options));
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return changed(DRIVER(cuLibraryUnload, library));
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    return changed(DRIVER(cuCtxSetLimit, limit, value));
}
