/*
 * cuDeviceGetAttribute: from the profile's facts where they decide, by compute capability where that does ("CUDA C Programming Guide", compute
 * capabilities), else what data-centre GPUs of the last years answer. What no public document says of them is 0; a number that no release has is
 * CUDA_ERROR_INVALID_VALUE.
 */
#include "context.h"
#include "entry.h"
#include "session.h"

struct constant {
    CUdevice_attribute attribute;
    int value;
};

#define IS(name, value) {CU_DEVICE_ATTRIBUTE_##name, value}

#define NEWEST_ATTRIBUTE 161 /* of CUDA 13.5; there are no gaps below it */

static const struct constant constants[] = {
    IS(MAX_THREADS_PER_BLOCK, 1024),
    IS(MAX_BLOCK_DIM_X, 1024),
    IS(MAX_BLOCK_DIM_Y, 1024),
    IS(MAX_BLOCK_DIM_Z, 64),
    IS(MAX_GRID_DIM_X, 2147483647),
    IS(MAX_GRID_DIM_Y, 65535),
    IS(MAX_GRID_DIM_Z, 65535),
    IS(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    IS(TOTAL_CONSTANT_MEMORY, 65536),
    IS(WARP_SIZE, 32),
    IS(MAX_PITCH, 2147483647),
    IS(MAX_REGISTERS_PER_BLOCK, 65536),
    IS(TEXTURE_ALIGNMENT, 512),
    IS(GPU_OVERLAP, 1),
    IS(KERNEL_EXEC_TIMEOUT, 0),
    IS(INTEGRATED, 0),
    IS(CAN_MAP_HOST_MEMORY, 1),
    IS(MAXIMUM_TEXTURE1D_WIDTH, 131072),
    IS(MAXIMUM_TEXTURE2D_WIDTH, 131072),
    IS(MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    IS(MAXIMUM_TEXTURE3D_WIDTH, 16384),
    IS(MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    IS(MAXIMUM_TEXTURE3D_DEPTH, 16384),
    IS(MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768),
    IS(MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048),
    IS(MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048),
    IS(MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768),
    IS(MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768),
    IS(MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192),
    IS(MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192),
    IS(MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768),
    IS(MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768),
    IS(MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046),
    IS(MAXIMUM_SURFACE1D_WIDTH, 32768),
    IS(MAXIMUM_SURFACE2D_WIDTH, 131072),
    IS(MAXIMUM_SURFACE2D_HEIGHT, 65536),
    IS(MAXIMUM_SURFACE3D_WIDTH, 16384),
    IS(MAXIMUM_SURFACE3D_HEIGHT, 16384),
    IS(MAXIMUM_SURFACE3D_DEPTH, 16384),
    IS(MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048),
    IS(MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768),
    IS(MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048),
    IS(MAXIMUM_SURFACECUBEMAP_WIDTH, 32768),
    IS(MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 32768),
    IS(MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046),
    IS(MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 268435456),
    IS(MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072),
    IS(MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000),
    IS(MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120),
    IS(MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768),
    IS(MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768),
    IS(MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768),
    IS(SURFACE_ALIGNMENT, 512),
    IS(CONCURRENT_KERNELS, 1),
    IS(TCC_DRIVER, 0),
    IS(L2_CACHE_SIZE, 41943040),
    IS(ASYNC_ENGINE_COUNT, 1),
    IS(UNIFIED_ADDRESSING, 1),
    IS(TEXTURE_PITCH_ALIGNMENT, 32),
    IS(STREAM_PRIORITIES_SUPPORTED, 1),
    IS(GLOBAL_L1_CACHE_SUPPORTED, 1),
    IS(LOCAL_L1_CACHE_SUPPORTED, 1),
    IS(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    IS(MANAGED_MEMORY, 1),
    IS(MULTI_GPU_BOARD, 0),
    IS(HOST_NATIVE_ATOMIC_SUPPORTED, 0),
    IS(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
    IS(CONCURRENT_MANAGED_ACCESS, 1),
    IS(COMPUTE_PREEMPTION_SUPPORTED, 1),
    IS(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    IS(COOPERATIVE_LAUNCH, 1),
    IS(COOPERATIVE_MULTI_DEVICE_LAUNCH, 1),
    IS(CAN_FLUSH_REMOTE_WRITES, 0),
    IS(HOST_REGISTER_SUPPORTED, 1),
    IS(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
    IS(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0),
    IS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
    IS(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    IS(MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_EACH),
    IS(GENERIC_COMPRESSION_SUPPORTED, 0),
    IS(MAX_PERSISTING_L2_CACHE_SIZE, 0),
    IS(MAX_ACCESS_POLICY_WINDOW_SIZE, 0),
    IS(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
    IS(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    IS(SPARSE_CUDA_ARRAY_SUPPORTED, 0),
    IS(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    IS(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0),
    IS(MEMORY_POOLS_SUPPORTED, 1),
    IS(GPU_DIRECT_RDMA_SUPPORTED, 0),
    IS(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0),
    IS(GPU_DIRECT_RDMA_WRITES_ORDERING, 0),
    IS(MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
    IS(CLUSTER_LAUNCH, 0),
    IS(DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0),
    IS(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    IS(CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    IS(DMA_BUF_SUPPORTED, 0),
    IS(IPC_EVENT_SUPPORTED, 1),
    IS(MEM_SYNC_DOMAIN_COUNT, 1),
    IS(TENSOR_MAP_ACCESS_SUPPORTED, 0),
    IS(HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    IS(UNIFIED_FUNCTION_POINTERS, 0),
    IS(MULTICAST_SUPPORTED, 0),
    IS(MPS_ENABLED, 0),
    IS(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
    IS(HOST_NUMA_MEMORY_POOLS_SUPPORTED, 0),
    IS(HOST_NUMA_MULTINODE_IPC_SUPPORTED, 0),
    IS(HOST_MEMORY_POOLS_SUPPORTED, 0),
};

enum { KIB = 1024 };

/* KiB of shared memory on one multiprocessor. */
static int shared_memory_kib(const struct gpu_facts *facts)
{
    switch (facts->capability_major * 10 + facts->capability_minor) {
    case 70:
    case 72:
        return 96;
    case 75:
        return 64;
    case 80:
    case 87:
        return 164;
    case 86:
    case 89:
        return 100;
    case 120:
    case 121:
        return 100;
    default:
        return facts->capability_major >= 9 ? 228 : 96;
    }
}

static int compute_mode(const struct gpu *gpu)
{
    struct gpu_status status;
    state_read(gpu->state, &status);
    return (int)status.compute_mode;
}

static int ecc_enabled(const struct gpu *gpu)
{
    struct gpu_status status;
    state_read(gpu->state, &status);
    return status.ecc != 0;
}

/* What differs between GPUs. False: not one of these. */
static bool of_gpu(const struct gpu *gpu, CUdevice_attribute attribute, int *out)
{
    const struct gpu_facts *facts = gpu->facts;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *out = (int)facts->sm_clock_mhz * 1000;
        return true;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        *out = (int)facts->memory_clock_mhz * 1000;
        return true;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        *out = (int)facts->memory_bus_bits;
        return true;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *out = (int)gpu->multiprocessors;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *out = (int)gpu->threads_each;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *out = shared_memory_kib(facts) * KIB;
        return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *out = (shared_memory_kib(facts) - 1) * KIB;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *out = (int)facts->capability_major;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *out = (int)facts->capability_minor;
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *out = (int)facts->bus;
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *out = (int)facts->device;
        return true;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *out = (int)facts->domain;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:
        *out = (int)facts->pci_id;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID:
        *out = (int)facts->pci_subsystem_id;
        return true;
    case CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:
        *out = driver.first_numa >= 0;
        return true;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
        *out = driver.first_numa < 0 ? -1 : driver.first_numa + gpu->ordinal;
        return true;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        *out = driver.hmm;
        return true;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        *out = facts->numa;
        return true;
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
        *out = gpu->ordinal;
        return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *out = compute_mode(gpu);
        return true;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        *out = ecc_enabled(gpu);
        return true;
    default:
        return false;
    }
}

ENTRY(cuDeviceGetAttribute)(int *pi, CUdevice_attribute attrib, CUdevice device)
{
    if (pi == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (of_gpu(&driver.gpus[device], attrib, pi))
        return CUDA_SUCCESS;
    for (unsigned i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (constants[i].attribute == attrib) {
            *pi = constants[i].value;
            return CUDA_SUCCESS;
        }
    }
    *pi = 0;
    return (int)attrib > 0 && (int)attrib <= NEWEST_ATTRIBUTE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
