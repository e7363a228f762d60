/*
 * The tables of functions that NVIDIA's own libraries take from the driver by UUID: those that the CUDA runtime asks for when it begins, as far as
 * they are publicly known.
 *
 * In: a UUID. Out: a table, whose first word is its size in bytes (the context's storage has none). Entries of which nothing is known answer
 * CUDA_ERROR_NOT_SUPPORTED. Source of UUIDs, places and meanings: public descriptions, above all ZLUDA's (its crate dark_api), and what a driver was seen
 * to do, where a function says so. One more table is the emulator's own, for tests. Not here: the table by which the runtime authenticates NVIDIA's driver
 * (D4082055-BDE6-704B-8D34-BA123C66E1F2). The emulator is not that driver and does not claim to be: the runtime gets CUDA_ERROR_NOT_FOUND, and its
 * initialisation ends there.
 */
#include <stdint.h>
#include <string.h>

#include "context.h"
#include "entry.h"
#include "session.h"

enum { ASKED = 64 };

static _Atomic unsigned asked_count;
static CUuuid asked[ASKED];

static CUresult unknown_function(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The runtime brings wrapped images in its programs and has them loaded here; the rest of the arguments is always empty. */
static CUresult load_wrapped(CUmodule *module, const void *wrapper)
{
    return entry_cuModuleLoadData(module, wrapper);
}

static CUresult load_unwrapped(const void *image, CUmodule *module)
{
    return entry_cuModuleLoadData(module, image);
}

/*
 * The handle of the primary context, which stays as it is, active or not. Seen with driver 580.159.04 on an H100: cuDevicePrimaryCtxGetState says before and
 * after that it is not active, and cuMemAlloc in it CUDA_ERROR_CONTEXT_IS_DESTROYED. By what the runtime makes it active is not known. Here its first
 * handle costs a beginning and an end.
 */
static CUresult primary_handle(CUcontext *context, CUdevice device)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (driver.gpus[device].primary != NULL) {
        *context = context_handle(driver.gpus[device].primary);
        return CUDA_SUCCESS;
    }
    CUresult error = entry_cuDevicePrimaryCtxRetain(context, device);
    return error == CUDA_SUCCESS ? entry_cuDevicePrimaryCtxRelease_v2(device) : error;
}

/* The compilers that the driver loads for the runtime; the emulator compiles nothing. */
static CUresult load_compilers(void)
{
    return CUDA_SUCCESS;
}

/* Space that the runtime writes to. */
static void first_buffer(void **buffer, size_t *size)
{
    static uint32_t space[1024];
    *buffer = space;
    *size = sizeof space;
}

static void second_buffer(void **buffer, size_t *size)
{
    static uint32_t space[14];
    *buffer = space;
    *size = sizeof space;
}

static CUresult check_context(CUcontext context, unsigned *found, const void **detail)
{
    (void)context;
    *found = 0;
    *detail = NULL;
    return CUDA_SUCCESS;
}

static unsigned check_process(void)
{
    return 0;
}

#define SIZE(places) ((const void *)((places) * sizeof(void *)))
#define F(function) ((const void *)(function))
#define UNKNOWN F(unknown_function)

static const void *const runtime_interface[13] = {
    SIZE(13), F(load_wrapped), F(primary_handle), UNKNOWN, UNKNOWN, UNKNOWN, F(load_wrapped), UNKNOWN, F(load_unwrapped),
    UNKNOWN,  UNKNOWN,         UNKNOWN,           F(load_compilers),
};
static const void *const tools_storage[4] = {SIZE(4), UNKNOWN, UNKNOWN, UNKNOWN};
static const void *const tools_callbacks[7] = {SIZE(7), UNKNOWN, F(first_buffer), UNKNOWN, UNKNOWN, UNKNOWN, F(second_buffer)};
static const void *const context_storage[4] = {UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN};
static const void *const context_creation[2] = {SIZE(2), F(entry_cuCtxCreate_v2)};
static const void *const context_tools[95] = {SIZE(95), [1 ... 94] = UNKNOWN}; /* asked for by runtimes of CUDA 13.4 and newer */
static const void *const checks[4] = {SIZE(4), UNKNOWN, F(check_context), F(check_process)};

/* No driver has it: a way to the primary context past the functions that others may hook. */
static const void *const emulators_own[2] = {SIZE(2), F(entry_cuDevicePrimaryCtxRetain)};

struct export_table {
    unsigned char id[16];
    const void *const *functions;
};

static const struct export_table tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, runtime_interface},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, tools_storage},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, tools_callbacks},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, context_storage},
    {{0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72, 0x86}, context_creation},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, context_tools},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, checks},
    {"vcuda-emulator-", emulators_own},
};

/* For tests: the UUIDs that this process asked for, one behind the other, the first `room` of them. Returns how many it asked for. */
__attribute__((visibility("default"))) size_t vcuda_emulator_tables_asked(CUuuid *out, size_t room);

size_t vcuda_emulator_tables_asked(CUuuid *out, size_t room)
{
    unsigned count = asked_count < ASKED ? asked_count : ASKED;
    memcpy(out, asked, (room < count ? room : count) * sizeof *out);
    return asked_count;
}

ENTRY(cuGetExportTable)(const void **export_table, const CUuuid *export_table_id)
{
    if (export_table == NULL || export_table_id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *export_table = NULL;
    unsigned place = asked_count++;
    if (place < ASKED)
        asked[place] = *export_table_id;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (memcmp(tables[i].id, export_table_id->bytes, sizeof tables[i].id) == 0) {
            *export_table = tables[i].functions;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}
