/*
 * Modules: code and globals take device memory that no allocation shows.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY where the container then has more than it may. How much it is nobody knows
 * before: what was loaded is counted, and unloaded again if it is too much. Of a library the driver loads parts when they are first used: what that
 * brings cannot be unloaded, so nothing more is loaded from then on. What a launch loads is not refused: it counts at the next allocation, or a second later
 * where the GPU's time has no limit and nobody looks at launches. Where the process gets no device memory, nothing is loaded.
 */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "memory.h"
#include "overhead.h"

static bool not_ours(void)
{
    return hook_nested() || !account_needed();
}

/* What nobody can count is too much. */
static bool is_over(unsigned index)
{
    overhead_settle();
    return overhead_is_lost(index) || account_is_over(index);
}

/* Whatever can be given back is, before. */
static bool has_no_room(void)
{
    unsigned index;
    enum verdict verdict = account_verdict_current(&index);

    if (verdict != VERDICT_COUNT)
        return verdict == VERDICT_REFUSE;
    memory_meet(index);
    if (!is_over(index))
        return false;
    account_reclaim(index);
    overhead_grew();
    if (!is_over(index))
        return false;
    account_refused(index);
    return true;
}

static bool is_too_much(CUresult error)
{
    if (error != CUDA_SUCCESS)
        return false;
    overhead_grew();
    return has_no_room();
}

static CUresult keep_module(CUresult error, CUmodule *module)
{
    if (not_ours() || !is_too_much(error))
        return error;
    DRIVER(cuModuleUnload, *module);
    overhead_grew();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult keep_library(CUresult error, CUlibrary *library)
{
    if (not_ours() || !is_too_much(error))
        return error;
    DRIVER(cuLibraryUnload, *library);
    overhead_grew();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unloaded(CUresult error)
{
    if (error == CUDA_SUCCESS && !not_ours())
        overhead_grew();
    return error;
}

void memory_launched_first(void)
{
    unsigned index;

    if (!not_ours() && account_verdict_current(&index) == VERDICT_COUNT)
        overhead_grew();
}

/* Of the whole GPU: where it did not become less, a call took nothing, and NVML need not be waited for. */
static size_t free_bytes(void)
{
    size_t free, total;

    return DRIVER(cuMemGetInfo_v2, &free, &total) == CUDA_SUCCESS ? free : 0;
}

/* A call that may load what it names. */
#define LOADS(symbol, ...)                                                                                             \
    if (not_ours())                                                                                                    \
        return real.symbol(__VA_ARGS__);                                                                               \
    if (has_no_room())                                                                                                 \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    size_t before = free_bytes();                                                                                      \
    CUresult error = DRIVER(symbol, __VA_ARGS__);                                                                      \
    return free_bytes() < before && is_too_much(error) ? CUDA_ERROR_OUT_OF_MEMORY : error;

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    return keep_module(DRIVER(cuModuleLoad, module, fname), module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return keep_module(DRIVER(cuModuleLoadData, module, image), module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options, CUjit_option *options, void **option_values)
{
    return keep_module(DRIVER(cuModuleLoadDataEx, module, image, num_options, options, option_values), module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fat_cubin)
{
    return keep_module(DRIVER(cuModuleLoadFatBinary, module, fat_cubin), module);
}

CUresult cuModuleUnload(CUmodule module)
{
    return unloaded(DRIVER(cuModuleUnload, module));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_options_values,
                           unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
                           unsigned int num_library_options)
{
    return keep_library(DRIVER(cuLibraryLoadData, library, code, jit_options, jit_options_values, num_jit_options, library_options,
                               library_option_values, num_library_options),
                        library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file_name, CUjit_option *jit_options, void **jit_options_values,
                               unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
                               unsigned int num_library_options)
{
    return keep_library(DRIVER(cuLibraryLoadFromFile, library, file_name, jit_options, jit_options_values, num_jit_options, library_options,
                               library_option_values, num_library_options),
                        library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return unloaded(DRIVER(cuLibraryUnload, library));
}

CUresult cuLibraryGetModule(CUmodule *mod, CUlibrary library)
{
    LOADS(cuLibraryGetModule, mod, library)
}

CUresult cuKernelGetFunction(CUfunction *func, CUkernel kernel)
{
    LOADS(cuKernelGetFunction, func, kernel)
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *pointer, unsigned int *bytes, CUmodule module, const char *name)
{
    LOADS(cuModuleGetGlobal, pointer, bytes, module, name)
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    LOADS(cuModuleGetGlobal_v2, pointer, bytes, module, name)
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    LOADS(cuLibraryGetGlobal, pointer, bytes, library, name)
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    LOADS(cuLibraryGetManaged, pointer, bytes, library, name)
}

CUresult cuFuncLoad(CUfunction function)
{
    LOADS(cuFuncLoad, function)
}
