/*
 * CUDA's driver entry points that this project speaks: one row each, from which declarations, hooks and the emulator's
 * symbol table are made. Include it with CUDA(symbol, base, version, stream, parameters, arguments) defined:
 *
 *   symbol      the exported name                      base    the name that cuGetProcAddress takes
 *   version     the CUDA version that brought it (4000 = 4.0); cuGetProcAddress gives the newest that is not above the one asked for
 *   stream      L: a null stream means the legacy default stream;  T: the calling thread's own (_ptsz, _ptds)
 *
 * Source of names, versions and signatures: cuda.h and cudaTypedefs.h of CUDA 12.9 and 13.x; tests/library/test_cuda_header.py
 * holds every row to them.
 */

/* ---- the driver and its entry points ---- */
CUDA(cuInit, cuInit, 2000, L, (unsigned int flags), (flags))
CUDA(cuDriverGetVersion, cuDriverGetVersion, 2020, L, (int *driver_version), (driver_version))
CUDA(cuGetProcAddress, cuGetProcAddress, 11030, L, (const char *symbol, void **entry, int version, uint64_t flags), (symbol,
     entry, version, flags))
CUDA(cuGetProcAddress_v2, cuGetProcAddress, 12000, L, (const char *symbol, void **entry, int version, uint64_t flags,
     CUdriverProcAddressQueryResult *symbol_status), (symbol, entry, version, flags, symbol_status))
CUDA(cuGetErrorString, cuGetErrorString, 6000, L, (CUresult error, const char **str), (error, str))
CUDA(cuGetErrorName, cuGetErrorName, 6000, L, (CUresult error, const char **str), (error, str))
CUDA(cuGetExportTable, cuGetExportTable, 3000, L, (const void **export_table, const CUuuid *export_table_id), (export_table,
     export_table_id))

/* ---- devices ---- */
CUDA(cuDeviceGet, cuDeviceGet, 2000, L, (CUdevice *device, int ordinal), (device, ordinal))
CUDA(cuDeviceGetCount, cuDeviceGetCount, 2000, L, (int *count), (count))
CUDA(cuDeviceGetName, cuDeviceGetName, 2000, L, (char *name, int len, CUdevice device), (name, len, device))
CUDA(cuDeviceGetUuid, cuDeviceGetUuid, 9020, L, (CUuuid *uuid, CUdevice device), (uuid, device))
CUDA(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, L, (CUuuid *uuid, CUdevice device), (uuid, device))
CUDA(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, L, (char *pci_bus_id, int len, CUdevice device), (pci_bus_id, len, device))
CUDA(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, L, (CUdevice *device, const char *pci_bus_id), (device, pci_bus_id))
CUDA(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, L, (int *pi, CUdevice_attribute attrib, CUdevice device), (pi, attrib,
     device))
CUDA(cuDeviceTotalMem, cuDeviceTotalMem, 2000, L, (unsigned int *bytes, CUdevice device), (bytes, device))
CUDA(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, L, (size_t *bytes, CUdevice device), (bytes, device))
CUDA(cuDeviceComputeCapability, cuDeviceComputeCapability, 2000, L, (int *major, int *minor, CUdevice device), (major, minor,
     device))
CUDA(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, L, (int *can_access_peer, CUdevice device, CUdevice peer_dev),
     (can_access_peer, device, peer_dev))
CUDA(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, L, (int *value, CUdevice_P2PAttribute attrib, CUdevice source,
     CUdevice target), (value, attrib, source, target))

/* ---- contexts ---- */
CUDA(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, L, (CUcontext *context, CUdevice device), (context, device))
CUDA(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, L, (CUdevice device), (device))
CUDA(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, L, (CUdevice device), (device))
CUDA(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, L, (CUdevice device), (device))
CUDA(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, L, (CUdevice device), (device))
CUDA(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags, 7000, L, (CUdevice device, unsigned int flags), (device, flags))
CUDA(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags, 11000, L, (CUdevice device, unsigned int flags), (device,
     flags))
CUDA(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, L, (CUdevice device, unsigned int *flags, int *active),
     (device, flags, active))
CUDA(cuCtxCreate, cuCtxCreate, 2000, L, (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device))
CUDA(cuCtxCreate_v2, cuCtxCreate, 3020, L, (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device))
CUDA(cuCtxCreate_v3, cuCtxCreate, 11040, L, (CUcontext *context, CUexecAffinityParam *params_array, int num_params, unsigned int
     flags, CUdevice device), (context, params_array, num_params, flags, device))
CUDA(cuCtxCreate_v4, cuCtxCreate, 12050, L, (CUcontext *context, CUctxCreateParams *ctx_create_params, unsigned int flags,
     CUdevice device), (context, ctx_create_params, flags, device))
CUDA(cuCtxDestroy, cuCtxDestroy, 2000, L, (CUcontext context), (context))
CUDA(cuCtxDestroy_v2, cuCtxDestroy, 4000, L, (CUcontext context), (context))
CUDA(cuCtxAttach, cuCtxAttach, 2000, L, (CUcontext *context, unsigned int flags), (context, flags))
CUDA(cuCtxDetach, cuCtxDetach, 2000, L, (CUcontext context), (context))
CUDA(cuCtxPushCurrent, cuCtxPushCurrent, 2000, L, (CUcontext context), (context))
CUDA(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, L, (CUcontext context), (context))
CUDA(cuCtxPopCurrent, cuCtxPopCurrent, 2000, L, (CUcontext *context), (context))
CUDA(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, L, (CUcontext *context), (context))
CUDA(cuCtxSetCurrent, cuCtxSetCurrent, 4000, L, (CUcontext context), (context))
CUDA(cuCtxGetCurrent, cuCtxGetCurrent, 4000, L, (CUcontext *context), (context))
CUDA(cuCtxGetDevice, cuCtxGetDevice, 2000, L, (CUdevice *device), (device))
CUDA(cuCtxGetDevice_v2, cuCtxGetDevice, 13000, L, (CUdevice *device, CUcontext context), (device, context))
CUDA(cuCtxGetFlags, cuCtxGetFlags, 7000, L, (unsigned int *flags), (flags))
CUDA(cuCtxGetId, cuCtxGetId, 12000, L, (CUcontext context, unsigned long long *ctx_id), (context, ctx_id))
CUDA(cuCtxSynchronize, cuCtxSynchronize, 2000, L, (void), ())
CUDA(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, L, (CUcontext context), (context))
CUDA(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, L, (CUcontext context, unsigned int *version), (context, version))
CUDA(cuCtxGetLimit, cuCtxGetLimit, 3010, L, (size_t *pvalue, CUlimit limit), (pvalue, limit))
CUDA(cuCtxSetLimit, cuCtxSetLimit, 3010, L, (CUlimit limit, size_t value), (limit, value))
CUDA(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, L, (int *least_priority, int *greatest_priority),
     (least_priority, greatest_priority))
CUDA(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, L, (CUcontext peer_context, unsigned int flags), (peer_context, flags))
CUDA(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, L, (CUcontext peer_context), (peer_context))

/* ---- modules, libraries, functions ---- */
CUDA(cuModuleLoad, cuModuleLoad, 2000, L, (CUmodule *module, const char *fname), (module, fname))
CUDA(cuModuleLoadData, cuModuleLoadData, 2000, L, (CUmodule *module, const void *image), (module, image))
CUDA(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, L, (CUmodule *module, const void *image, unsigned int num_options,
     CUjit_option *options, void **option_values), (module, image, num_options, options, option_values))
CUDA(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, L, (CUmodule *module, const void *fat_cubin), (module, fat_cubin))
CUDA(cuModuleUnload, cuModuleUnload, 2000, L, (CUmodule module), (module))
CUDA(cuModuleGetFunction, cuModuleGetFunction, 2000, L, (CUfunction *function, CUmodule module, const char *name), (function,
     module, name))
CUDA(cuModuleGetGlobal, cuModuleGetGlobal, 2000, L, (CUdeviceptr_v1 *pointer, unsigned int *bytes, CUmodule module, const char
     *name), (pointer, bytes, module, name))
CUDA(cuModuleGetGlobal_v2, cuModuleGetGlobal, 3020, L, (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name),
     (pointer, bytes, module, name))
CUDA(cuModuleGetLoadingMode, cuModuleGetLoadingMode, 11070, L, (CUmoduleLoadingMode *mode), (mode))
CUDA(cuLibraryLoadData, cuLibraryLoadData, 12000, L, (CUlibrary *library, const void *code, CUjit_option *jit_options, void
     **jit_options_values, unsigned int num_jit_options, CUlibraryOption *library_options, void **library_option_values,
     unsigned int num_library_options), (library, code, jit_options, jit_options_values, num_jit_options, library_options,
     library_option_values, num_library_options))
CUDA(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, L, (CUlibrary *library, const char *file_name, CUjit_option
     *jit_options, void **jit_options_values, unsigned int num_jit_options, CUlibraryOption *library_options, void
     **library_option_values, unsigned int num_library_options), (library, file_name, jit_options, jit_options_values,
     num_jit_options, library_options, library_option_values, num_library_options))
CUDA(cuLibraryUnload, cuLibraryUnload, 12000, L, (CUlibrary library), (library))
CUDA(cuLibraryGetKernel, cuLibraryGetKernel, 12000, L, (CUkernel *kernel, CUlibrary library, const char *name), (kernel,
     library, name))
CUDA(cuLibraryGetModule, cuLibraryGetModule, 12000, L, (CUmodule *mod, CUlibrary library), (mod, library))
CUDA(cuLibraryGetGlobal, cuLibraryGetGlobal, 12000, L, (CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name),
     (pointer, bytes, library, name))
CUDA(cuLibraryGetManaged, cuLibraryGetManaged, 12000, L, (CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name),
     (pointer, bytes, library, name))
CUDA(cuFuncLoad, cuFuncLoad, 12040, L, (CUfunction function), (function))
CUDA(cuKernelGetFunction, cuKernelGetFunction, 12000, L, (CUfunction *func, CUkernel kernel), (func, kernel))
CUDA(cuKernelGetAttribute, cuKernelGetAttribute, 12000, L, (int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice
     device), (pi, attrib, kernel, device))
CUDA(cuFuncGetAttribute, cuFuncGetAttribute, 2020, L, (int *pi, CUfunction_attribute attrib, CUfunction function), (pi, attrib,
     function))
CUDA(cuFuncSetAttribute, cuFuncSetAttribute, 9000, L, (CUfunction function, CUfunction_attribute attrib, int value), (function,
     attrib, value))
CUDA(cuFuncSetCacheConfig, cuFuncSetCacheConfig, 3000, L, (CUfunction function, CUfunc_cache config), (function, config))
CUDA(cuFuncGetModule, cuFuncGetModule, 11000, L, (CUmodule *module, CUfunction function), (module, function))
CUDA(cuFuncSetBlockShape, cuFuncSetBlockShape, 2000, L, (CUfunction function, int x, int y, int z), (function, x, y, z))
CUDA(cuFuncSetSharedSize, cuFuncSetSharedSize, 2000, L, (CUfunction function, unsigned int bytes), (function, bytes))
CUDA(cuParamSetSize, cuParamSetSize, 2000, L, (CUfunction function, unsigned int numbytes), (function, numbytes))
CUDA(cuParamSeti, cuParamSeti, 2000, L, (CUfunction function, int offset, unsigned int value), (function, offset, value))
CUDA(cuParamSetf, cuParamSetf, 2000, L, (CUfunction function, int offset, float value), (function, offset, value))
CUDA(cuParamSetv, cuParamSetv, 2000, L, (CUfunction function, int offset, void *pointer, unsigned int numbytes), (function,
     offset, pointer, numbytes))
CUDA(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, L, (int *num_blocks,
     CUfunction func, int block_size, size_t dynamic_s_mem_size), (num_blocks, func, block_size, dynamic_s_mem_size))

/* ---- memory ---- */
CUDA(cuMemGetInfo, cuMemGetInfo, 2000, L, (unsigned int *free, unsigned int *total), (free, total))
CUDA(cuMemGetInfo_v2, cuMemGetInfo, 3020, L, (size_t *free, size_t *total), (free, total))
CUDA(cuMemAlloc, cuMemAlloc, 2000, L, (CUdeviceptr_v1 *pointer, unsigned int bytes), (pointer, bytes))
CUDA(cuMemAlloc_v2, cuMemAlloc, 3020, L, (CUdeviceptr *pointer, size_t bytes), (pointer, bytes))
CUDA(cuMemAllocPitch, cuMemAllocPitch, 2000, L, (CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width_in_bytes,
     unsigned int height, unsigned int element_size_bytes), (pointer, pitch, width_in_bytes, height, element_size_bytes))
CUDA(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, L, (CUdeviceptr *pointer, size_t *pitch, size_t width_in_bytes, size_t height,
     unsigned int element_size_bytes), (pointer, pitch, width_in_bytes, height, element_size_bytes))
CUDA(cuMemAllocManaged, cuMemAllocManaged, 6000, L, (CUdeviceptr *pointer, size_t bytes, unsigned int flags), (pointer, bytes,
     flags))
CUDA(cuMemFree, cuMemFree, 2000, L, (CUdeviceptr_v1 pointer), (pointer))
CUDA(cuMemFree_v2, cuMemFree, 3020, L, (CUdeviceptr pointer), (pointer))
CUDA(cuMemGetAddressRange, cuMemGetAddressRange, 2000, L, (CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 pointer),
     (pbase, psize, pointer))
CUDA(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020, L, (CUdeviceptr *pbase, size_t *psize, CUdeviceptr pointer), (pbase,
     psize, pointer))
CUDA(cuMemAllocHost, cuMemAllocHost, 2000, L, (void **pp, unsigned int bytes), (pp, bytes))
CUDA(cuMemAllocHost_v2, cuMemAllocHost, 3020, L, (void **pp, size_t bytes), (pp, bytes))
CUDA(cuMemHostAlloc, cuMemHostAlloc, 2020, L, (void **pp, size_t bytes, unsigned int flags), (pp, bytes, flags))
CUDA(cuMemFreeHost, cuMemFreeHost, 2000, L, (void *p), (p))
CUDA(cuMemHostRegister, cuMemHostRegister, 4000, L, (void *p, size_t bytes, unsigned int flags), (p, bytes, flags))
CUDA(cuMemHostRegister_v2, cuMemHostRegister, 6050, L, (void *p, size_t bytes, unsigned int flags), (p, bytes, flags))
CUDA(cuMemHostUnregister, cuMemHostUnregister, 4000, L, (void *p), (p))
CUDA(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer, 2020, L, (CUdeviceptr_v1 *pointer, void *p, unsigned int flags),
     (pointer, p, flags))
CUDA(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020, L, (CUdeviceptr *pointer, void *p, unsigned int flags),
     (pointer, p, flags))
CUDA(cuPointerGetAttribute, cuPointerGetAttribute, 4000, L, (void *data, CUpointer_attribute attribute, CUdeviceptr pointer),
     (data, attribute, pointer))
CUDA(cuPointerGetAttributes, cuPointerGetAttributes, 7000, L, (unsigned int num_attributes, CUpointer_attribute *attributes,
     void **data, CUdeviceptr pointer), (num_attributes, attributes, data, pointer))
CUDA(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, L, (CUdeviceptr target, const void *source, size_t bytes), (target, source, bytes))
CUDA(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, L, (void *target, CUdeviceptr source, size_t bytes), (target, source, bytes))
CUDA(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, L, (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source, bytes))
CUDA(cuMemcpy, cuMemcpy, 4000, L, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), (dst, src, bytes))
CUDA(cuMemcpyAsync, cuMemcpyAsync, 4000, L, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src, bytes,
     stream))
CUDA(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020, L, (CUdeviceptr target, const void *source, size_t bytes, CUstream stream),
     (target, source, bytes, stream))
CUDA(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020, L, (void *target, CUdeviceptr source, size_t bytes, CUstream stream),
     (target, source, bytes, stream))
CUDA(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020, L, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream),
     (target, source, bytes, stream))
CUDA(cuMemsetD8_v2, cuMemsetD8, 3020, L, (CUdeviceptr target, unsigned char uc, size_t n), (target, uc, n))
CUDA(cuMemsetD32_v2, cuMemsetD32, 3020, L, (CUdeviceptr target, unsigned int ui, size_t n), (target, ui, n))
CUDA(cuMemsetD8Async, cuMemsetD8Async, 3020, L, (CUdeviceptr target, unsigned char uc, size_t n, CUstream stream), (target, uc,
     n, stream))
CUDA(cuMemsetD32Async, cuMemsetD32Async, 3020, L, (CUdeviceptr target, unsigned int ui, size_t n, CUstream stream), (target, ui,
     n, stream))
CUDA(cuMemcpy_ptds, cuMemcpy, 7000, T, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), (dst, src, bytes))
CUDA(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, 7000, T, (CUdeviceptr target, const void *source, size_t bytes), (target, source,
     bytes))
CUDA(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, 7000, T, (void *target, CUdeviceptr source, size_t bytes), (target, source, bytes))
CUDA(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD, 7000, T, (CUdeviceptr target, CUdeviceptr source, size_t bytes), (target, source,
     bytes))
CUDA(cuMemcpyAsync_ptsz, cuMemcpyAsync, 7000, T, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src,
     bytes, stream))
CUDA(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, 7000, T, (CUdeviceptr target, const void *source, size_t bytes, CUstream
     stream), (target, source, bytes, stream))
CUDA(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, 7000, T, (void *target, CUdeviceptr source, size_t bytes, CUstream stream),
     (target, source, bytes, stream))
CUDA(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync, 7000, T, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream
     stream), (target, source, bytes, stream))
CUDA(cuMemsetD8_v2_ptds, cuMemsetD8, 7000, T, (CUdeviceptr target, unsigned char uc, size_t n), (target, uc, n))
CUDA(cuMemsetD32_v2_ptds, cuMemsetD32, 7000, T, (CUdeviceptr target, unsigned int ui, size_t n), (target, ui, n))
CUDA(cuMemsetD8Async_ptsz, cuMemsetD8Async, 7000, T, (CUdeviceptr target, unsigned char uc, size_t n, CUstream stream), (target,
     uc, n, stream))
CUDA(cuMemsetD32Async_ptsz, cuMemsetD32Async, 7000, T, (CUdeviceptr target, unsigned int ui, size_t n, CUstream stream),
     (target, ui, n, stream))
CUDA(cuArrayCreate, cuArrayCreate, 2000, L, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *allocate_array), (array,
     allocate_array))
CUDA(cuArrayCreate_v2, cuArrayCreate, 3020, L, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *allocate_array), (array,
     allocate_array))
CUDA(cuArray3DCreate, cuArray3DCreate, 2000, L, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *allocate_array), (array,
     allocate_array))
CUDA(cuArray3DCreate_v2, cuArray3DCreate, 3020, L, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *allocate_array), (array,
     allocate_array))
CUDA(cuArrayDestroy, cuArrayDestroy, 2000, L, (CUarray array), (array))
CUDA(cuArrayGetDescriptor_v2, cuArrayGetDescriptor, 3020, L, (CUDA_ARRAY_DESCRIPTOR *array_descriptor, CUarray array),
     (array_descriptor, array))
CUDA(cuArray3DGetDescriptor_v2, cuArray3DGetDescriptor, 3020, L, (CUDA_ARRAY3D_DESCRIPTOR *array_descriptor, CUarray array),
     (array_descriptor, array))
CUDA(cuArrayGetMemoryRequirements, cuArrayGetMemoryRequirements, 11060, L, (CUDA_ARRAY_MEMORY_REQUIREMENTS *memory_requirements,
     CUarray array, CUdevice device), (memory_requirements, array, device))
CUDA(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, L, (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR
     *mipmapped_array_desc, unsigned int num_mipmap_levels), (array, mipmapped_array_desc, num_mipmap_levels))
CUDA(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, L, (CUmipmappedArray mipmapped_array), (mipmapped_array))
CUDA(cuMipmappedArrayGetLevel, cuMipmappedArrayGetLevel, 5000, L, (CUarray *level_array, CUmipmappedArray mipmapped_array,
     unsigned int level), (level_array, mipmapped_array, level))
CUDA(cuMipmappedArrayGetMemoryRequirements, cuMipmappedArrayGetMemoryRequirements, 11060, L, (CUDA_ARRAY_MEMORY_REQUIREMENTS
     *memory_requirements, CUmipmappedArray mipmap, CUdevice device), (memory_requirements, mipmap, device))
CUDA(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, L, (CUipcMemHandle *array, CUdeviceptr pointer), (array, pointer))
CUDA(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010, L, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags),
     (pointer, handle, flags))
CUDA(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000, L, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags),
     (pointer, handle, flags))
CUDA(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, L, (CUdeviceptr pointer), (pointer))
CUDA(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, L, (CUipcEventHandle *array, CUevent event), (array, event))
CUDA(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, L, (CUevent *event, CUipcEventHandle handle), (event, handle))

/* ---- virtual memory ---- */
CUDA(cuMemAddressReserve, cuMemAddressReserve, 10020, L, (CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr addr,
     unsigned long long flags), (pointer, size, alignment, addr, flags))
CUDA(cuMemAddressFree, cuMemAddressFree, 10020, L, (CUdeviceptr pointer, size_t size), (pointer, size))
CUDA(cuMemCreate, cuMemCreate, 10020, L, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
     unsigned long long flags), (handle, size, prop, flags))
CUDA(cuMemRelease, cuMemRelease, 10020, L, (CUmemGenericAllocationHandle handle), (handle))
CUDA(cuMemMap, cuMemMap, 10020, L, (CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
     unsigned long long flags), (pointer, size, offset, handle, flags))
CUDA(cuMemMapArrayAsync, cuMemMapArrayAsync, 11010, L, (CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream),
     (map_info_list, count, stream))
CUDA(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync, 11010, T, (CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream),
     (map_info_list, count, stream))
CUDA(cuMemUnmap, cuMemUnmap, 10020, L, (CUdeviceptr pointer, size_t size), (pointer, size))
CUDA(cuMemSetAccess, cuMemSetAccess, 10020, L, (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *desc, size_t count),
     (pointer, size, desc, count))
CUDA(cuMemGetAccess, cuMemGetAccess, 10020, L, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer),
     (flags, location, pointer))
CUDA(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, L, (void *shareable_handle, CUmemGenericAllocationHandle
     handle, CUmemAllocationHandleType handle_type, unsigned long long flags), (shareable_handle, handle, handle_type, flags))
CUDA(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, L, (CUmemGenericAllocationHandle *handle, void
     *os_handle, CUmemAllocationHandleType sh_handle_type), (handle, os_handle, sh_handle_type))
CUDA(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, L, (size_t *granularity, const CUmemAllocationProp
     *prop, CUmemAllocationGranularity_flags option), (granularity, prop, option))
CUDA(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, L, (CUmemAllocationProp *prop,
     CUmemGenericAllocationHandle handle), (prop, handle))
CUDA(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, L, (CUmemGenericAllocationHandle *handle, void *addr),
     (handle, addr))

/* ---- stream-ordered memory ---- */
CUDA(cuMemAllocAsync, cuMemAllocAsync, 11020, L, (CUdeviceptr *pointer, size_t bytes, CUstream stream), (pointer, bytes,
     stream))
CUDA(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, T, (CUdeviceptr *pointer, size_t bytes, CUstream stream), (pointer, bytes,
     stream))
CUDA(cuMemFreeAsync, cuMemFreeAsync, 11020, L, (CUdeviceptr pointer, CUstream stream), (pointer, stream))
CUDA(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, T, (CUdeviceptr pointer, CUstream stream), (pointer, stream))
CUDA(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, L, (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
     CUstream stream), (pointer, bytes, pool, stream))
CUDA(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, T, (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
     CUstream stream), (pointer, bytes, pool, stream))
CUDA(cuMemPoolCreate, cuMemPoolCreate, 11020, L, (CUmemoryPool *pool, const CUmemPoolProps *pool_props), (pool, pool_props))
CUDA(cuMemPoolDestroy, cuMemPoolDestroy, 11020, L, (CUmemoryPool pool), (pool))
CUDA(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, L, (CUmemoryPool pool, size_t min_bytes_to_keep), (pool, min_bytes_to_keep))
CUDA(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, L, (CUmemoryPool pool, CUmemPool_attribute attr, void *value), (pool,
     attr, value))
CUDA(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, L, (CUmemoryPool pool, CUmemPool_attribute attr, void *value), (pool,
     attr, value))
CUDA(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, L, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), (pool,
     map, count))
CUDA(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, L, (CUmemAccess_flags *flags, CUmemoryPool mem_pool, CUmemLocation
     *location), (flags, mem_pool, location))
CUDA(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, L, (CUmemoryPool *pool_out, CUdevice device), (pool_out,
     device))
CUDA(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, L, (CUmemoryPool *pool, CUdevice device), (pool, device))
CUDA(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, L, (CUdevice device, CUmemoryPool pool), (device, pool))
CUDA(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020, L, (void *handle_out, CUmemoryPool pool,
     CUmemAllocationHandleType handle_type, unsigned long long flags), (handle_out, pool, handle_type, flags))
CUDA(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020, L, (CUmemoryPool *pool_out, void *handle,
     CUmemAllocationHandleType handle_type, unsigned long long flags), (pool_out, handle, handle_type, flags))
CUDA(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, L, (CUmemPoolPtrExportData *share_data_out, CUdeviceptr pointer),
     (share_data_out, pointer))
CUDA(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020, L, (CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData
     *share_data), (ptr_out, pool, share_data))
CUDA(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040, L, (CUdevice device, CUgraphMem_attribute attr, void
     *value), (device, attr, value))
CUDA(cuDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute, 11040, L, (CUdevice device, CUgraphMem_attribute attr, void
     *value), (device, attr, value))
CUDA(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, L, (CUdevice device), (device))
CUDA(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, L, (CUmemoryPool *pool_out, CUmemLocation *location,
     CUmemAllocationType type), (pool_out, location, type))
CUDA(cuMemGetMemPool, cuMemGetMemPool, 13000, L, (CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type), (pool,
     location, type))
CUDA(cuMemSetMemPool, cuMemSetMemPool, 13000, L, (CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool),
     (location, type, pool))

/* ---- streams and events ---- */
CUDA(cuStreamCreate, cuStreamCreate, 2000, L, (CUstream *stream, unsigned int flags), (stream, flags))
CUDA(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, L, (CUstream *stream, unsigned int flags, int priority),
     (stream, flags, priority))
CUDA(cuStreamDestroy, cuStreamDestroy, 2000, L, (CUstream stream), (stream))
CUDA(cuStreamDestroy_v2, cuStreamDestroy, 4000, L, (CUstream stream), (stream))
CUDA(cuStreamSynchronize, cuStreamSynchronize, 2000, L, (CUstream stream), (stream))
CUDA(cuStreamSynchronize_ptsz, cuStreamSynchronize, 7000, T, (CUstream stream), (stream))
CUDA(cuStreamQuery, cuStreamQuery, 2000, L, (CUstream stream), (stream))
CUDA(cuStreamQuery_ptsz, cuStreamQuery, 7000, T, (CUstream stream), (stream))
CUDA(cuStreamWaitEvent, cuStreamWaitEvent, 3020, L, (CUstream stream, CUevent event, unsigned int flags), (stream, event,
     flags))
CUDA(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, 7000, T, (CUstream stream, CUevent event, unsigned int flags), (stream, event,
     flags))
CUDA(cuStreamGetCtx, cuStreamGetCtx, 9020, L, (CUstream stream, CUcontext *context), (stream, context))
CUDA(cuStreamGetCtx_ptsz, cuStreamGetCtx, 9020, T, (CUstream stream, CUcontext *context), (stream, context))
CUDA(cuStreamGetCtx_v2, cuStreamGetCtx, 12050, L, (CUstream stream, CUcontext *context, CUgreenCtx *green), (stream, context,
     green))
CUDA(cuStreamGetCtx_v2_ptsz, cuStreamGetCtx, 12050, T, (CUstream stream, CUcontext *context, CUgreenCtx *green), (stream,
     context, green))
CUDA(cuStreamGetDevice, cuStreamGetDevice, 12080, L, (CUstream stream, CUdevice *device), (stream, device))
CUDA(cuStreamGetDevice_ptsz, cuStreamGetDevice, 12080, T, (CUstream stream, CUdevice *device), (stream, device))
CUDA(cuStreamGetFlags, cuStreamGetFlags, 5050, L, (CUstream stream, unsigned int *flags), (stream, flags))
CUDA(cuStreamGetFlags_ptsz, cuStreamGetFlags, 7000, T, (CUstream stream, unsigned int *flags), (stream, flags))
CUDA(cuStreamGetPriority, cuStreamGetPriority, 5050, L, (CUstream stream, int *priority), (stream, priority))
CUDA(cuStreamGetPriority_ptsz, cuStreamGetPriority, 7000, T, (CUstream stream, int *priority), (stream, priority))
CUDA(cuStreamGetId, cuStreamGetId, 12000, L, (CUstream stream, unsigned long long *stream_id), (stream, stream_id))
CUDA(cuStreamGetId_ptsz, cuStreamGetId, 12000, T, (CUstream stream, unsigned long long *stream_id), (stream, stream_id))
CUDA(cuEventCreate, cuEventCreate, 2000, L, (CUevent *event, unsigned int flags), (event, flags))
CUDA(cuEventDestroy, cuEventDestroy, 2000, L, (CUevent event), (event))
CUDA(cuEventDestroy_v2, cuEventDestroy, 4000, L, (CUevent event), (event))
CUDA(cuEventRecord, cuEventRecord, 2000, L, (CUevent event, CUstream stream), (event, stream))
CUDA(cuEventRecord_ptsz, cuEventRecord, 7000, T, (CUevent event, CUstream stream), (event, stream))
CUDA(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, L, (CUevent event, CUstream stream, unsigned int flags), (event,
     stream, flags))
CUDA(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags, 11010, T, (CUevent event, CUstream stream, unsigned int flags),
     (event, stream, flags))
CUDA(cuEventQuery, cuEventQuery, 2000, L, (CUevent event), (event))
CUDA(cuEventSynchronize, cuEventSynchronize, 2000, L, (CUevent event), (event))
CUDA(cuEventElapsedTime, cuEventElapsedTime, 2000, L, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start,
     end))
CUDA(cuEventElapsedTime_v2, cuEventElapsedTime, 12080, L, (float *milliseconds, CUevent start, CUevent end), (milliseconds,
     start, end))
CUDA(cuStreamBeginCapture, cuStreamBeginCapture, 10000, L, (CUstream stream), (stream))
CUDA(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, 10000, T, (CUstream stream), (stream))
CUDA(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, L, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CUDA(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010, T, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CUDA(cuStreamEndCapture, cuStreamEndCapture, 10000, L, (CUstream stream, CUgraph *graph), (stream, graph))
CUDA(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, T, (CUstream stream, CUgraph *graph), (stream, graph))
CUDA(cuStreamIsCapturing, cuStreamIsCapturing, 10000, L, (CUstream stream, CUstreamCaptureStatus *capture_status), (stream,
     capture_status))
CUDA(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, 10000, T, (CUstream stream, CUstreamCaptureStatus *capture_status), (stream,
     capture_status))
CUDA(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010, L, (CUstream stream, CUstreamCaptureStatus *capture_status_out,
     uint64_t *id_out), (stream, capture_status_out, id_out))
CUDA(cuStreamGetCaptureInfo_ptsz, cuStreamGetCaptureInfo, 10010, T, (CUstream stream, CUstreamCaptureStatus *capture_status_out,
     uint64_t *id_out), (stream, capture_status_out, id_out))
CUDA(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo, 11030, L, (CUstream stream, CUstreamCaptureStatus *capture_status_out,
     uint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *num_dependencies_out), (stream,
     capture_status_out, id_out, graph_out, dependencies_out, num_dependencies_out))
CUDA(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo, 11030, T, (CUstream stream, CUstreamCaptureStatus
     *capture_status_out, uint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t
     *num_dependencies_out), (stream, capture_status_out, id_out, graph_out, dependencies_out, num_dependencies_out))
CUDA(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo, 12030, L, (CUstream stream, CUstreamCaptureStatus *capture_status_out,
     uint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData **edge_data_out, size_t
     *num_dependencies_out), (stream, capture_status_out, id_out, graph_out, dependencies_out, edge_data_out,
     num_dependencies_out))
CUDA(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo, 12030, T, (CUstream stream, CUstreamCaptureStatus
     *capture_status_out, uint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, const CUgraphEdgeData
     **edge_data_out, size_t *num_dependencies_out), (stream, capture_status_out, id_out, graph_out, dependencies_out,
     edge_data_out, num_dependencies_out))
CUDA(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, L, (CUstreamCaptureMode *mode), (mode))
CUDA(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, L, (CUstream stream, CUgraph graph, const CUgraphNode
     *dependencies, const CUgraphEdgeData *dependency_data, size_t num_dependencies, CUstreamCaptureMode mode), (stream, graph,
     dependencies, dependency_data, num_dependencies, mode))
CUDA(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 12030, T, (CUstream stream, CUgraph graph, const CUgraphNode
     *dependencies, const CUgraphEdgeData *dependency_data, size_t num_dependencies, CUstreamCaptureMode mode), (stream, graph,
     dependencies, dependency_data, num_dependencies, mode))

/* ---- launches ---- */
CUDA(cuLaunchKernel, cuLaunchKernel, 4000, L, (CUfunction function, unsigned int grid_dim_x, unsigned int grid_dim_y, unsigned
     int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z, unsigned int
     shared_mem_bytes, CUstream stream, void **kernel_params, void **extra), (function, grid_dim_x, grid_dim_y, grid_dim_z,
     block_dim_x, block_dim_y, block_dim_z, shared_mem_bytes, stream, kernel_params, extra))
CUDA(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, T, (CUfunction function, unsigned int grid_dim_x, unsigned int grid_dim_y,
     unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z, unsigned int
     shared_mem_bytes, CUstream stream, void **kernel_params, void **extra), (function, grid_dim_x, grid_dim_y, grid_dim_z,
     block_dim_x, block_dim_y, block_dim_z, shared_mem_bytes, stream, kernel_params, extra))
CUDA(cuLaunchKernelEx, cuLaunchKernelEx, 11060, L, (const CUlaunchConfig *config, CUfunction function, void **kernel_params,
     void **extra), (config, function, kernel_params, extra))
CUDA(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, T, (const CUlaunchConfig *config, CUfunction function, void
     **kernel_params, void **extra), (config, function, kernel_params, extra))
CUDA(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, L, (CUfunction function, unsigned int grid_dim_x, unsigned int
     grid_dim_y, unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z, unsigned
     int shared_mem_bytes, CUstream stream, void **kernel_params), (function, grid_dim_x, grid_dim_y, grid_dim_z, block_dim_x,
     block_dim_y, block_dim_z, shared_mem_bytes, stream, kernel_params))
CUDA(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, T, (CUfunction function, unsigned int grid_dim_x, unsigned
     int grid_dim_y, unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z,
     unsigned int shared_mem_bytes, CUstream stream, void **kernel_params), (function, grid_dim_x, grid_dim_y, grid_dim_z,
     block_dim_x, block_dim_y, block_dim_z, shared_mem_bytes, stream, kernel_params))
CUDA(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000, L, (CUDA_LAUNCH_PARAMS
     *launch_params_list, unsigned int num_devices, unsigned int flags), (launch_params_list, num_devices, flags))
CUDA(cuLaunch, cuLaunch, 2000, L, (CUfunction function), (function))
CUDA(cuLaunchGrid, cuLaunchGrid, 2000, L, (CUfunction function, int grid_width, int grid_height), (function, grid_width,
     grid_height))
CUDA(cuLaunchGridAsync, cuLaunchGridAsync, 2000, L, (CUfunction function, int grid_width, int grid_height, CUstream stream),
     (function, grid_width, grid_height, stream))
CUDA(cuLaunchHostFunc, cuLaunchHostFunc, 10000, L, (CUstream stream, CUhostFn fn, void *user_data), (stream, fn, user_data))
CUDA(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, 10000, T, (CUstream stream, CUhostFn fn, void *user_data), (stream, fn,
     user_data))
CUDA(cuLaunchHostFunc_v2, cuLaunchHostFunc, 13010, L, (CUstream stream, CUhostFn fn, void *user_data, unsigned int sync_mode),
     (stream, fn, user_data, sync_mode))
CUDA(cuLaunchHostFunc_v2_ptsz, cuLaunchHostFunc, 13010, T, (CUstream stream, CUhostFn fn, void *user_data, unsigned int
     sync_mode), (stream, fn, user_data, sync_mode))

/* ---- graphs ---- */
CUDA(cuGraphCreate, cuGraphCreate, 10000, L, (CUgraph *graph, unsigned int flags), (graph, flags))
CUDA(cuGraphDestroy, cuGraphDestroy, 10000, L, (CUgraph graph), (graph))
CUDA(cuGraphClone, cuGraphClone, 10000, L, (CUgraph *graph_clone, CUgraph original_graph), (graph_clone, original_graph))
CUDA(cuGraphAddKernelNode, cuGraphAddKernelNode, 10000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     size_t num_dependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *node_params), (node, graph, dependencies, num_dependencies,
     node_params))
CUDA(cuGraphAddKernelNode_v2, cuGraphAddKernelNode, 12000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode
     *dependencies, size_t num_dependencies, const CUDA_KERNEL_NODE_PARAMS *node_params), (node, graph, dependencies,
     num_dependencies, node_params))
CUDA(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode, 10000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     size_t num_dependencies, const CUDA_MEMCPY3D *copy_params, CUcontext context), (node, graph, dependencies,
     num_dependencies, copy_params, context))
CUDA(cuGraphAddMemsetNode, cuGraphAddMemsetNode, 10000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     size_t num_dependencies, const CUDA_MEMSET_NODE_PARAMS *memset_params, CUcontext context), (node, graph, dependencies,
     num_dependencies, memset_params, context))
CUDA(cuGraphAddEmptyNode, cuGraphAddEmptyNode, 10000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     size_t num_dependencies), (node, graph, dependencies, num_dependencies))
CUDA(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, 10000, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode
     *dependencies, size_t num_dependencies, CUgraph child_graph), (node, graph, dependencies, num_dependencies, child_graph))
CUDA(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode
     *dependencies, size_t num_dependencies, CUDA_MEM_ALLOC_NODE_PARAMS *node_params), (node, graph, dependencies,
     num_dependencies, node_params))
CUDA(cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, 11040, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
     size_t num_dependencies, CUdeviceptr pointer), (node, graph, dependencies, num_dependencies, pointer))
CUDA(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, 11040, L, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS
     *params_out), (node, params_out))
CUDA(cuGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams, 11040, L, (CUgraphNode node, CUdeviceptr *dptr_out), (node,
     dptr_out))
CUDA(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, 10000, L, (CUgraphNode node, CUgraph *graph), (node, graph))
CUDA(cuGraphAddNode, cuGraphAddNode, 12020, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t
     num_dependencies, CUgraphNodeParams *node_params), (node, graph, dependencies, num_dependencies, node_params))
CUDA(cuGraphAddNode_v2, cuGraphAddNode, 12030, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const
     CUgraphEdgeData *dependency_data, size_t num_dependencies, CUgraphNodeParams *node_params), (node, graph, dependencies,
     dependency_data, num_dependencies, node_params))
CUDA(cuGraphAddNode_v3, cuGraphAddNode, 13040, L, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const
     CUgraphEdgeData *dependency_data, size_t num_dependencies, CUgraphNodeParams *node_params), (node, graph, dependencies,
     dependency_data, num_dependencies, node_params))
CUDA(cuGraphAddDependencies, cuGraphAddDependencies, 10000, L, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
     size_t num_dependencies), (graph, from, to, num_dependencies))
CUDA(cuGraphAddDependencies_v2, cuGraphAddDependencies, 12030, L, (CUgraph graph, const CUgraphNode *from, const CUgraphNode
     *to, const CUgraphEdgeData *edge_data, size_t num_dependencies), (graph, from, to, edge_data, num_dependencies))
CUDA(cuGraphGetNodes, cuGraphGetNodes, 10000, L, (CUgraph graph, CUgraphNode *nodes, size_t *num_nodes), (graph, nodes,
     num_nodes))
CUDA(cuGraphNodeGetType, cuGraphNodeGetType, 10000, L, (CUgraphNode node, CUgraphNodeType *type), (node, type))
CUDA(cuGraphInstantiate, cuGraphInstantiate, 10000, L, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char
     *log_buffer, size_t buffer_size), (exec, graph, error_node, log_buffer, buffer_size))
CUDA(cuGraphInstantiate_v2, cuGraphInstantiate, 11000, L, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char
     *log_buffer, size_t buffer_size), (exec, graph, error_node, log_buffer, buffer_size))
CUDA(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, L, (CUgraphExec *exec, CUgraph graph, unsigned long long
     flags), (exec, graph, flags))
CUDA(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, L, (CUgraphExec *exec, CUgraph graph,
     CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params), (exec, graph, instantiate_params))
CUDA(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, 12000, T, (CUgraphExec *exec, CUgraph graph,
     CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params), (exec, graph, instantiate_params))
CUDA(cuGraphUpload, cuGraphUpload, 11010, L, (CUgraphExec graph, CUstream stream), (graph, stream))
CUDA(cuGraphUpload_ptsz, cuGraphUpload, 11010, T, (CUgraphExec exec, CUstream stream), (exec, stream))
CUDA(cuGraphLaunch, cuGraphLaunch, 10000, L, (CUgraphExec graph, CUstream stream), (graph, stream))
CUDA(cuGraphLaunch_ptsz, cuGraphLaunch, 10000, T, (CUgraphExec exec, CUstream stream), (exec, stream))
CUDA(cuGraphExecDestroy, cuGraphExecDestroy, 10000, L, (CUgraphExec exec), (exec))
CUDA(cuGraphExecUpdate, cuGraphExecUpdate, 10020, L, (CUgraphExec exec, CUgraph graph, CUgraphNode *error_node_out,
     CUgraphExecUpdateResult *update_result_out), (exec, graph, error_node_out, update_result_out))
CUDA(cuGraphExecUpdate_v2, cuGraphExecUpdate, 12000, L, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo
     *result_info), (exec, graph, result_info))
CUDA(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams, 10000, L, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1
     *node_params), (node, node_params))
CUDA(cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeGetParams, 12000, L, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS
     *node_params), (node, node_params))
CUDA(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams, 10010, L, (CUgraphExec exec, CUgraphNode node, const
     CUDA_KERNEL_NODE_PARAMS_v1 *node_params), (exec, node, node_params))
CUDA(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams, 12000, L, (CUgraphExec exec, CUgraphNode node, const
     CUDA_KERNEL_NODE_PARAMS *node_params), (exec, node, node_params))
CUDA(cuGraphExecGetFlags, cuGraphExecGetFlags, 12000, L, (CUgraphExec exec, uint64_t *flags), (exec, flags))
CUDA(cuGraphDestroyNode, cuGraphDestroyNode, 10000, L, (CUgraphNode node), (node))

/* ---- groups of GPUs behind NVSwitch ---- */
CUDA(cuMulticastBindMem, cuMulticastBindMem, 12010, L, (CUmemGenericAllocationHandle mc_handle, size_t mc_offset,
     CUmemGenericAllocationHandle mem_handle, size_t mem_offset, size_t size, unsigned long long flags), (mc_handle, mc_offset,
     mem_handle, mem_offset, size, flags))
CUDA(cuMulticastBindMem_v2, cuMulticastBindMem, 13010, L, (CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset,
     CUmemGenericAllocationHandle mem_handle, size_t mem_offset, size_t size, unsigned long long flags), (mc_handle, device, mc_offset,
     mem_handle, mem_offset, size, flags))
CUDA(cuMulticastBindAddr, cuMulticastBindAddr, 12010, L, (CUmemGenericAllocationHandle mc_handle, size_t mc_offset, CUdeviceptr
     pointer, size_t size, unsigned long long flags), (mc_handle, mc_offset, pointer, size, flags))
CUDA(cuMulticastBindAddr_v2, cuMulticastBindAddr, 13010, L, (CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset,
     CUdeviceptr pointer, size_t size, unsigned long long flags), (mc_handle, device, mc_offset, pointer, size, flags))
CUDA(cuLogicalEndpointBindMem, cuLogicalEndpointBindMem, 13030, L, (CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
     CUmemGenericAllocationHandle mem_handle, uint64_t mem_offset, uint64_t size, unsigned long long flags), (endpoint, device, offset,
     mem_handle, mem_offset, size, flags))
CUDA(cuLogicalEndpointBindAddr, cuLogicalEndpointBindAddr, 13030, L, (CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
     void *pointer, uint64_t size, unsigned long long flags), (endpoint, device, offset, pointer, size, flags))

/* ---- green contexts, external memory, multicast: seen, not counted ---- */
CUDA(cuMulticastCreate, cuMulticastCreate, 12010, L, (CUmemGenericAllocationHandle *mc_handle, const CUmulticastObjectProp
     *prop), (mc_handle, prop))
CUDA(cuGreenCtxCreate, cuGreenCtxCreate, 12040, L, (CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice device, unsigned int
     flags), (ctx, desc, device, flags))
CUDA(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040, L, (CUgreenCtx ctx), (ctx))
CUDA(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040, L, (CUcontext *context, CUgreenCtx ctx), (context, ctx))
CUDA(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate, 12050, L, (CUstream *stream, CUgreenCtx green, unsigned int flags, int
     priority), (stream, green, flags, priority))
CUDA(cuStreamGetGreenCtx, cuStreamGetGreenCtx, 12040, L, (CUstream stream, CUgreenCtx *ctx), (stream, ctx))
CUDA(cuImportExternalMemory, cuImportExternalMemory, 10000, L, (CUexternalMemory *ext_mem_out, const
     CUDA_EXTERNAL_MEMORY_HANDLE_DESC *mem_handle_desc), (ext_mem_out, mem_handle_desc))
CUDA(cuDestroyExternalMemory, cuDestroyExternalMemory, 10000, L, (CUexternalMemory ext_mem), (ext_mem))
CUDA(cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer, 10000, L, (CUdeviceptr *dev_ptr, CUexternalMemory
     ext_mem, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer_desc), (dev_ptr, ext_mem, buffer_desc))

/* ---- further copies ---- */
CUDA(cuFabricCpyBatchAsync, cuFabricCpyBatchAsync, 13050, L, (size_t count, CUDA_FABRIC_COPY_BATCH_OP *operations, unsigned long
     long flags, CUstream stream), (count, operations, flags, stream))
CUDA(cuFabricCpyBatchAsync_ptsz, cuFabricCpyBatchAsync, 13050, T, (size_t count, CUDA_FABRIC_COPY_BATCH_OP *operations, unsigned
     long long flags, CUstream stream), (count, operations, flags, stream))
CUDA(cuMemBatchDecompressAsync, cuMemBatchDecompressAsync, 12060, L, (CUmemDecompressParams *parameters, size_t count, unsigned
     int flags, size_t *failed, CUstream stream), (parameters, count, flags, failed, stream))
CUDA(cuMemBatchDecompressAsync_ptsz, cuMemBatchDecompressAsync, 12060, T, (CUmemDecompressParams *parameters, size_t count,
     unsigned int flags, size_t *failed, CUstream stream), (parameters, count, flags, failed, stream))
CUDA(cuMemcpy2D, cuMemcpy2D, 2000, L, (const CUDA_MEMCPY2D_v1 *copy), (copy))
CUDA(cuMemcpy2D_v2, cuMemcpy2D, 3020, L, (const CUDA_MEMCPY2D *copy), (copy))
CUDA(cuMemcpy2D_v2_ptds, cuMemcpy2D, 7000, T, (const CUDA_MEMCPY2D *copy), (copy))
CUDA(cuMemcpy2DAsync, cuMemcpy2DAsync, 2000, L, (const CUDA_MEMCPY2D_v1 *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, L, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, 7000, T, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, 2000, L, (const CUDA_MEMCPY2D_v1 *copy), (copy))
CUDA(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, L, (const CUDA_MEMCPY2D *copy), (copy))
CUDA(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, 7000, T, (const CUDA_MEMCPY2D *copy), (copy))
CUDA(cuMemcpy3D, cuMemcpy3D, 2000, L, (const CUDA_MEMCPY3D_v1 *copy), (copy))
CUDA(cuMemcpy3D_v2, cuMemcpy3D, 3020, L, (const CUDA_MEMCPY3D *copy), (copy))
CUDA(cuMemcpy3D_v2_ptds, cuMemcpy3D, 7000, T, (const CUDA_MEMCPY3D *copy), (copy))
CUDA(cuMemcpy3DAsync, cuMemcpy3DAsync, 2000, L, (const CUDA_MEMCPY3D_v1 *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, 3020, L, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, 7000, T, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, 12080, L, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
     unsigned long long flags, CUstream stream), (count, operations, failed, flags, stream))
CUDA(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync, 12080, T, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t
     *failed, unsigned long long flags, CUstream stream), (count, operations, failed, flags, stream))
CUDA(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync, 13000, L, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned long
     long flags, CUstream stream), (count, operations, flags, stream))
CUDA(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync, 13000, T, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned
     long long flags, CUstream stream), (count, operations, flags, stream))
CUDA(cuMemcpy3DPeer, cuMemcpy3DPeer, 4000, L, (const CUDA_MEMCPY3D_PEER *copy), (copy))
CUDA(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, 7000, T, (const CUDA_MEMCPY3D_PEER *copy), (copy))
CUDA(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, 4000, L, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, 7000, T, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
CUDA(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync, 13020, L, (CUDA_MEMCPY3D_BATCH_OP *operation, unsigned long
     long flags, CUstream stream), (operation, flags, stream))
CUDA(cuMemcpy3DWithAttributesAsync_ptsz, cuMemcpy3DWithAttributesAsync, 13020, T, (CUDA_MEMCPY3D_BATCH_OP *operation, unsigned
     long long flags, CUstream stream), (operation, flags, stream))
CUDA(cuMemcpyAtoA, cuMemcpyAtoA, 2000, L, (CUarray target, unsigned int target_offset, CUarray source, unsigned int
     source_offset, unsigned int bytes), (target, target_offset, source, source_offset, bytes))
CUDA(cuMemcpyAtoA_v2, cuMemcpyAtoA, 3020, L, (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t
     bytes), (target, target_offset, source, source_offset, bytes))
CUDA(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, 7000, T, (CUarray target, size_t target_offset, CUarray source, size_t source_offset,
     size_t bytes), (target, target_offset, source, source_offset, bytes))
CUDA(cuMemcpyAtoD, cuMemcpyAtoD, 2000, L, (CUdeviceptr_v1 target, CUarray source, unsigned int source_offset, unsigned int
     bytes), (target, source, source_offset, bytes))
CUDA(cuMemcpyAtoD_v2, cuMemcpyAtoD, 3020, L, (CUdeviceptr target, CUarray source, size_t source_offset, size_t bytes), (target,
     source, source_offset, bytes))
CUDA(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD, 7000, T, (CUdeviceptr target, CUarray source, size_t source_offset, size_t bytes),
     (target, source, source_offset, bytes))
CUDA(cuMemcpyAtoH, cuMemcpyAtoH, 2000, L, (void *target, CUarray source, unsigned int source_offset, unsigned int bytes),
     (target, source, source_offset, bytes))
CUDA(cuMemcpyAtoH_v2, cuMemcpyAtoH, 3020, L, (void *target, CUarray source, size_t source_offset, size_t bytes), (target,
     source, source_offset, bytes))
CUDA(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH, 7000, T, (void *target, CUarray source, size_t source_offset, size_t bytes), (target,
     source, source_offset, bytes))
CUDA(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync, 2000, L, (void *target, CUarray source, unsigned int source_offset, unsigned int
     bytes, CUstream stream), (target, source, source_offset, bytes, stream))
CUDA(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync, 3020, L, (void *target, CUarray source, size_t source_offset, size_t bytes,
     CUstream stream), (target, source, source_offset, bytes, stream))
CUDA(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync, 7000, T, (void *target, CUarray source, size_t source_offset, size_t bytes,
     CUstream stream), (target, source, source_offset, bytes, stream))
CUDA(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080, L, (CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
     CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count, size_t *failed, CUstream stream),
     (targets, sources, sizes, count, attributes, attribute_indices, attribute_count, failed, stream))
CUDA(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, 12080, T, (CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t
     count, CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count, size_t *failed, CUstream stream),
     (targets, sources, sizes, count, attributes, attribute_indices, attribute_count, failed, stream))
CUDA(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, 13000, L, (CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t
     count, CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count, CUstream stream), (targets,
     sources, sizes, count, attributes, attribute_indices, attribute_count, stream))
CUDA(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, 13000, T, (CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes,
     size_t count, CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count, CUstream stream),
     (targets, sources, sizes, count, attributes, attribute_indices, attribute_count, stream))
CUDA(cuMemcpyDtoA, cuMemcpyDtoA, 2000, L, (CUarray target, unsigned int target_offset, CUdeviceptr_v1 source, unsigned int
     bytes), (target, target_offset, source, bytes))
CUDA(cuMemcpyDtoA_v2, cuMemcpyDtoA, 3020, L, (CUarray target, size_t target_offset, CUdeviceptr source, size_t bytes), (target,
     target_offset, source, bytes))
CUDA(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA, 7000, T, (CUarray target, size_t target_offset, CUdeviceptr source, size_t bytes),
     (target, target_offset, source, bytes))
CUDA(cuMemcpyDtoD, cuMemcpyDtoD, 2000, L, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int bytes), (target, source,
     bytes))
CUDA(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, 3000, L, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int bytes, CUstream
     stream), (target, source, bytes, stream))
CUDA(cuMemcpyDtoH, cuMemcpyDtoH, 2000, L, (void *target, CUdeviceptr_v1 source, unsigned int bytes), (target, source, bytes))
CUDA(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, 2000, L, (void *target, CUdeviceptr_v1 source, unsigned int bytes, CUstream stream),
     (target, source, bytes, stream))
CUDA(cuMemcpyHtoA, cuMemcpyHtoA, 2000, L, (CUarray target, unsigned int target_offset, const void *source, unsigned int bytes),
     (target, target_offset, source, bytes))
CUDA(cuMemcpyHtoA_v2, cuMemcpyHtoA, 3020, L, (CUarray target, size_t target_offset, const void *source, size_t bytes), (target,
     target_offset, source, bytes))
CUDA(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA, 7000, T, (CUarray target, size_t target_offset, const void *source, size_t bytes),
     (target, target_offset, source, bytes))
CUDA(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync, 2000, L, (CUarray target, unsigned int target_offset, const void *source, unsigned
     int bytes, CUstream stream), (target, target_offset, source, bytes, stream))
CUDA(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync, 3020, L, (CUarray target, size_t target_offset, const void *source, size_t bytes,
     CUstream stream), (target, target_offset, source, bytes, stream))
CUDA(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync, 7000, T, (CUarray target, size_t target_offset, const void *source, size_t
     bytes, CUstream stream), (target, target_offset, source, bytes, stream))
CUDA(cuMemcpyHtoD, cuMemcpyHtoD, 2000, L, (CUdeviceptr_v1 target, const void *source, unsigned int bytes), (target, source,
     bytes))
CUDA(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync, 2000, L, (CUdeviceptr_v1 target, const void *source, unsigned int bytes, CUstream
     stream), (target, source, bytes, stream))
CUDA(cuMemcpyPeer, cuMemcpyPeer, 4000, L, (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext
     source_context, size_t bytes), (target, target_context, source, source_context, bytes))
CUDA(cuMemcpyPeer_ptds, cuMemcpyPeer, 7000, T, (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext
     source_context, size_t bytes), (target, target_context, source, source_context, bytes))
CUDA(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, L, (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext
     source_context, size_t bytes, CUstream stream), (target, target_context, source, source_context, bytes, stream))
CUDA(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, 7000, T, (CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
     CUcontext source_context, size_t bytes, CUstream stream), (target, target_context, source, source_context, bytes, stream))
CUDA(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync, 13020, L, (CUdeviceptr target, CUdeviceptr source, size_t size,
     CUmemcpyAttributes *attributes, CUstream stream), (target, source, size, attributes, stream))
CUDA(cuMemcpyWithAttributesAsync_ptsz, cuMemcpyWithAttributesAsync, 13020, T, (CUdeviceptr target, CUdeviceptr source, size_t
     size, CUmemcpyAttributes *attributes, CUstream stream), (target, source, size, attributes, stream))

/* ---- further fills ---- */
CUDA(cuMemsetD16, cuMemsetD16, 2000, L, (CUdeviceptr_v1 target, unsigned short value, unsigned int count), (target, value,
     count))
CUDA(cuMemsetD16_v2, cuMemsetD16, 3020, L, (CUdeviceptr target, unsigned short value, size_t count), (target, value, count))
CUDA(cuMemsetD16_v2_ptds, cuMemsetD16, 7000, T, (CUdeviceptr target, unsigned short value, size_t count), (target, value,
     count))
CUDA(cuMemsetD16Async, cuMemsetD16Async, 3020, L, (CUdeviceptr target, unsigned short value, size_t count, CUstream stream),
     (target, value, count, stream))
CUDA(cuMemsetD16Async_ptsz, cuMemsetD16Async, 7000, T, (CUdeviceptr target, unsigned short value, size_t count, CUstream
     stream), (target, value, count, stream))
CUDA(cuMemsetD2D16, cuMemsetD2D16, 2000, L, (CUdeviceptr_v1 target, unsigned int pitch, unsigned short value, unsigned int
     width, unsigned int height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D16_v2, cuMemsetD2D16, 3020, L, (CUdeviceptr target, size_t pitch, unsigned short value, size_t width, size_t
     height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D16_v2_ptds, cuMemsetD2D16, 7000, T, (CUdeviceptr target, size_t pitch, unsigned short value, size_t width,
     size_t height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D16Async, cuMemsetD2D16Async, 3020, L, (CUdeviceptr target, size_t pitch, unsigned short value, size_t width,
     size_t height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, 7000, T, (CUdeviceptr target, size_t pitch, unsigned short value, size_t
     width, size_t height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD2D32, cuMemsetD2D32, 2000, L, (CUdeviceptr_v1 target, unsigned int pitch, unsigned int value, unsigned int width,
     unsigned int height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D32_v2, cuMemsetD2D32, 3020, L, (CUdeviceptr target, size_t pitch, unsigned int value, size_t width, size_t
     height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D32_v2_ptds, cuMemsetD2D32, 7000, T, (CUdeviceptr target, size_t pitch, unsigned int value, size_t width, size_t
     height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D32Async, cuMemsetD2D32Async, 3020, L, (CUdeviceptr target, size_t pitch, unsigned int value, size_t width,
     size_t height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, 7000, T, (CUdeviceptr target, size_t pitch, unsigned int value, size_t width,
     size_t height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD2D8, cuMemsetD2D8, 2000, L, (CUdeviceptr_v1 target, unsigned int pitch, unsigned char value, unsigned int width,
     unsigned int height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D8_v2, cuMemsetD2D8, 3020, L, (CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t
     height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D8_v2_ptds, cuMemsetD2D8, 7000, T, (CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t
     height), (target, pitch, value, width, height))
CUDA(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, L, (CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t
     height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, 7000, T, (CUdeviceptr target, size_t pitch, unsigned char value, size_t width,
     size_t height, CUstream stream), (target, pitch, value, width, height, stream))
CUDA(cuMemsetD32, cuMemsetD32, 2000, L, (CUdeviceptr_v1 target, unsigned int value, unsigned int count), (target, value, count))
CUDA(cuMemsetD8, cuMemsetD8, 2000, L, (CUdeviceptr_v1 target, unsigned char value, unsigned int count), (target, value, count))

/* ---- waits, callbacks and memory operations in streams ---- */
CUDA(cuCtxWaitEvent, cuCtxWaitEvent, 12050, L, (CUcontext context, CUevent event), (context, event))
CUDA(cuGreenCtxWaitEvent, cuGreenCtxWaitEvent, 12040, L, (CUgreenCtx context, CUevent event), (context, event))
CUDA(cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync, 10000, L, (const CUexternalSemaphore *semaphores, const
     CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters, unsigned int count, CUstream stream), (semaphores, parameters, count,
     stream))
CUDA(cuSignalExternalSemaphoresAsync_ptsz, cuSignalExternalSemaphoresAsync, 10000, T, (const CUexternalSemaphore *semaphores,
     const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters, unsigned int count, CUstream stream), (semaphores, parameters,
     count, stream))
CUDA(cuStreamAddCallback, cuStreamAddCallback, 5000, L, (CUstream stream, CUstreamCallback callback, void *data, unsigned int
     flags), (stream, callback, data, flags))
CUDA(cuStreamAddCallback_ptsz, cuStreamAddCallback, 7000, T, (CUstream stream, CUstreamCallback callback, void *data, unsigned
     int flags), (stream, callback, data, flags))
CUDA(cuStreamBatchMemOp, cuStreamBatchMemOp, 8000, L, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams
     *parameters, unsigned int flags), (stream, count, parameters, flags))
CUDA(cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp, 8000, T, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams
     *parameters, unsigned int flags), (stream, count, parameters, flags))
CUDA(cuStreamBatchMemOp_v2, cuStreamBatchMemOp, 11070, L, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams
     *parameters, unsigned int flags), (stream, count, parameters, flags))
CUDA(cuStreamBatchMemOp_v2_ptsz, cuStreamBatchMemOp, 11070, T, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams
     *parameters, unsigned int flags), (stream, count, parameters, flags))
CUDA(cuStreamWaitValue32, cuStreamWaitValue32, 8000, L, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue32_ptsz, cuStreamWaitValue32, 8000, T, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue32_v2, cuStreamWaitValue32, 11070, L, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue32, 11070, T, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue64, cuStreamWaitValue64, 9000, L, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue64_ptsz, cuStreamWaitValue64, 9000, T, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue64_v2, cuStreamWaitValue64, 11070, L, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWaitValue64_v2_ptsz, cuStreamWaitValue64, 11070, T, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue32, cuStreamWriteValue32, 8000, L, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue32_ptsz, cuStreamWriteValue32, 8000, T, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue32_v2, cuStreamWriteValue32, 11070, L, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue32_v2_ptsz, cuStreamWriteValue32, 11070, T, (CUstream stream, CUdeviceptr address, uint32_t value,
     unsigned int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue64, cuStreamWriteValue64, 9000, L, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int
     flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue64_ptsz, cuStreamWriteValue64, 9000, T, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue64_v2, cuStreamWriteValue64, 11070, L, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned
     int flags), (stream, address, value, flags))
CUDA(cuStreamWriteValue64_v2_ptsz, cuStreamWriteValue64, 11070, T, (CUstream stream, CUdeviceptr address, uint64_t value,
     unsigned int flags), (stream, address, value, flags))
CUDA(cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync, 10000, L, (const CUexternalSemaphore *semaphores, const
     CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count, CUstream stream), (semaphores, parameters, count,
     stream))
CUDA(cuWaitExternalSemaphoresAsync_ptsz, cuWaitExternalSemaphoresAsync, 10000, T, (const CUexternalSemaphore *semaphores, const
     CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count, CUstream stream), (semaphores, parameters, count,
     stream))

/* ---- where managed memory is ---- */
CUDA(cuMemAdvise, cuMemAdvise, 8000, L, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device),
     (pointer, count, advice, device))
CUDA(cuMemAdvise_v2, cuMemAdvise, 12020, L, (CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location),
     (pointer, count, advice, location))
CUDA(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, 13000, L, (CUdeviceptr *pointers, size_t *sizes,
     size_t count, CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream
     stream), (pointers, sizes, count, locations, location_indices, location_count, flags, stream))
CUDA(cuMemDiscardAndPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, 13000, T, (CUdeviceptr *pointers, size_t *sizes,
     size_t count, CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream
     stream), (pointers, sizes, count, locations, location_indices, location_count, flags, stream))
CUDA(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync, 13000, L, (CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned
     long long flags, CUstream stream), (pointers, sizes, count, flags, stream))
CUDA(cuMemDiscardBatchAsync_ptsz, cuMemDiscardBatchAsync, 13000, T, (CUdeviceptr *pointers, size_t *sizes, size_t count,
     unsigned long long flags, CUstream stream), (pointers, sizes, count, flags, stream))
CUDA(cuMemPrefetchAsync, cuMemPrefetchAsync, 8000, L, (CUdeviceptr pointer, size_t count, CUdevice target, CUstream stream),
     (pointer, count, target, stream))
CUDA(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync, 8000, T, (CUdeviceptr pointer, size_t count, CUdevice target, CUstream
     stream), (pointer, count, target, stream))
CUDA(cuMemPrefetchAsync_v2, cuMemPrefetchAsync, 12020, L, (CUdeviceptr pointer, size_t count, CUmemLocation location, unsigned
     int flags, CUstream stream), (pointer, count, location, flags, stream))
CUDA(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync, 12020, T, (CUdeviceptr pointer, size_t count, CUmemLocation location,
     unsigned int flags, CUstream stream), (pointer, count, location, flags, stream))
CUDA(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, 13000, L, (CUdeviceptr *pointers, size_t *sizes, size_t count,
     CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream),
     (pointers, sizes, count, locations, location_indices, location_count, flags, stream))
CUDA(cuMemPrefetchBatchAsync_ptsz, cuMemPrefetchBatchAsync, 13000, T, (CUdeviceptr *pointers, size_t *sizes, size_t count,
     CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream),
     (pointers, sizes, count, locations, location_indices, location_count, flags, stream))
CUDA(cuStreamAttachMemAsync, cuStreamAttachMemAsync, 6000, L, (CUstream stream, CUdeviceptr pointer, size_t length, unsigned int
     flags), (stream, pointer, length, flags))
CUDA(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync, 7000, T, (CUstream stream, CUdeviceptr pointer, size_t length,
     unsigned int flags), (stream, pointer, length, flags))

/* ---- further captures ---- */
CUDA(cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig, 13010, L, (CUstream stream, CUstreamCigCaptureParams *parameters),
     (stream, parameters))
CUDA(cuStreamBeginCaptureToCig_ptsz, cuStreamBeginCaptureToCig, 13010, T, (CUstream stream, CUstreamCigCaptureParams
     *parameters), (stream, parameters))
CUDA(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, 13030, L, (CUstream stream, CUstreamCaptureMode mode, CUgraph
     graph, CUgraphRecaptureCallback callback, void *data), (stream, mode, graph, callback, data))
CUDA(cuStreamBeginRecaptureToGraph_ptsz, cuStreamBeginRecaptureToGraph, 13030, T, (CUstream stream, CUstreamCaptureMode mode,
     CUgraph graph, CUgraphRecaptureCallback callback, void *data), (stream, mode, graph, callback, data))
CUDA(cuStreamEndCaptureToCig, cuStreamEndCaptureToCig, 13010, L, (CUstream stream), (stream))
CUDA(cuStreamEndCaptureToCig_ptsz, cuStreamEndCaptureToCig, 13010, T, (CUstream stream), (stream))
