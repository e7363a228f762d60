"""Every function of cuda-bindings' `cuda.bindings.driver`, called once with sane arguments.

In: the bindings' own signatures. Out: for each function its result, and what it returned as far as that is no handle or
address. Each call finds a context with one object of every kind, made for it alone. Not here: what is right.
"""

import ctypes
import inspect
import re
from typing import Any

from tests.library.inside.objects import PTX, SIZE, World, result
from tests.library.inside.runtime import calls_made

Answer = Any

_PLAIN = (bool, int, str, bytes)


def _by_name(world: World) -> dict[str, Any]:
    """What a parameter of that name is given, where nothing else is said of it."""
    first, second = world.pointers
    return {
        **dict.fromkeys(("hStream", "stream"), world.stream),
        **dict.fromkeys(("ctx", "hCtx", "srcContext", "dstContext", "context"), world.context),
        **dict.fromkeys(("hEvent", "event", "hStart"), world.events[0]),
        "hEnd": world.events[1],
        **dict.fromkeys(("dptr", "devPtr", "ptr", "dstDevice", "addr", "dst"), first),
        **dict.fromkeys(("srcDevice", "src"), second),
        **dict.fromkeys(("p", "dstHost", "srcHost"), world.pinned),
        **dict.fromkeys(("dstArray", "srcArray"), world.array()),
        **dict.fromkeys(("hmod", "mod"), world.module),
        **dict.fromkeys(("func", "hfunc", "f", "function"), world.function),
        **dict.fromkeys(("library", "lib"), world.library),
        "kernel": world.kernel,
        **dict.fromkeys(("hGraph", "graph", "originalGraph", "childGraph", "hClonedGraph"), world.graph),
        **dict.fromkeys(("hNode", "hOriginalNode"), world.nodes[0]),
        "hGraphExec": world.executable,
        **dict.fromkeys(("code", "image", "fatCubin", "data"), PTX),
        **dict.fromkeys(("name",), b"work"),
        **dict.fromkeys(("bytesize", "size", "ByteCount", "numbytes"), 4096),
        **dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), 1),
        **dict.fromkeys(("grid_width", "grid_height", "x", "y", "z", "blockSize"), 1),
        **dict.fromkeys(("Width", "Height", "N", "WidthInBytes"), 16),
        **dict.fromkeys(("dstPitch", "Pitch"), 512),
        "ElementSizeBytes": 4,
        **dict.fromkeys(("fn", "callback", "destroy"), ctypes.cast(world.no_op, ctypes.c_void_p).value),
        **dict.fromkeys(("fname", "fileName", "path", "pathToFile"), b"/nowhere"),
        "symbol": b"cuInit",
        "cudaVersion": 12000,
        "length": 64,
        "pciBusId": b"0000:01:00.0",
        "peerContext": world.context,
        "kernelParams": 0,
        "extra": 0,
    }


def _for(world: World, name: str) -> list[Any] | None:
    """All arguments of a function for which names of parameters do not do."""
    driver, first = world.driver, world.pointers[0]
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    handle = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    special: dict[str, Any] = {
        "cuArray3DCreate": lambda: [_descriptor(world)],
        "cuArrayCreate": lambda: [world.flat_array()],
        "cuMipmappedArrayCreate": lambda: [_descriptor(world), 1],
        "cuArrayGetDescriptor": lambda: [world.array()],
        "cuArray3DGetDescriptor": lambda: [world.array()],
        "cuArrayDestroy": lambda: [world.array()],
        "cuArrayGetMemoryRequirements": lambda: [world.array(), 0],
        "cuMipmappedArrayDestroy": lambda: [world.array(1)],
        "cuMipmappedArrayGetLevel": lambda: [world.array(1), 0],
        "cuMipmappedArrayGetMemoryRequirements": lambda: [world.array(1), 0],
        "cuCtxCreate": lambda: [None, 0, 0],
        "cuCtxDestroy": lambda: [world.second_context()],
        "cuCtxAttach": lambda: [world.second_context() and 0],
        "cuCtxDetach": lambda: [world.second_context()],
        "cuCtxEnablePeerAccess": lambda: [world.of_the_other_gpu(), 0],
        "cuCtxDisablePeerAccess": lambda: [world.peer()],
        "cuCtxFromGreenCtx": lambda: [world.green()],
        "cuGreenCtxDestroy": lambda: [world.green()],
        "cuGreenCtxStreamCreate": lambda: [world.green(), 1, 0],
        "cuDeviceGetP2PAtomicCapabilities": lambda: [[], 0, 0, 1],
        "cuDeviceSetGraphMemAttribute": lambda: [0, driver.CUgraphMem_attribute(1), driver.cuuint64_t(0)],
        "cuGetExportTable": lambda: [world.uuid("6bd5fb6c5bf4e74a8987d93912fd9df9")],
        "cuGraphAddMemFreeNode": lambda: [world.graph, *world.allocated_in_graph()],
        "cuGraphAddMemsetNode": lambda: [world.graph, [], 0, world.fill(), world.context],
        "cuGraphAddNode": lambda: [world.graph, [], [], 0, world.empty_node()],
        "cuGraphAddNode_v3": lambda: [world.graph, [], [], 0, world.empty_node()],
        "cuGraphChildGraphNodeGetGraph": lambda: [world.child()],
        "cuGraphExecKernelNodeSetParams": lambda: world.executable_kernel(),
        "cuGraphMemAllocNodeGetParams": lambda: world.allocated_in_graph()[0],
        "cuGraphMemFreeNodeGetParams": lambda: [
            result(driver.cuGraphAddMemFreeNode(world.graph, *world.allocated_in_graph()))
        ],
        "cuGraphicsEGLRegisterImage": lambda: [0, 0],
        "cuGraphicsGLRegisterImage": lambda: [0, 0, 0],
        "cuIpcGetEventHandle": lambda: [result(driver.cuEventCreate(6))],
        "cuLaunchCooperativeKernelMultiDevice": lambda: [[world.one_of_several()], 1, 0],
        "cuLibraryLoadFromFile": lambda: [world.file(), [], [], 0, [], [], 0],
        "cuModuleLoad": lambda: [world.file()],
        "cuLogsDumpToMemory": lambda: [None, bytes(64), 64, 0],
        "cuMemGetDefaultMemPool": lambda: [world.location(), driver.CUmemAllocationType(1)],
        "cuMemGetMemPool": lambda: [world.location(), driver.CUmemAllocationType(1)],
        "cuMemSetMemPool": lambda: [world.location(), driver.CUmemAllocationType(1), world.pool()],
        "cuMemImportFromShareableHandle": lambda: [_exported(world, handle), handle],
        "cuMemPoolExportPointer": lambda: [world.ordered_from(_shared(world, handle))],
        "cuMemPoolImportFromShareableHandle": lambda: [_exported_pool(world, handle), handle, 0],
        "cuPointerGetAttributes": lambda: [1, [driver.CUpointer_attribute(2)], first],
        "cuPointerSetAttribute": lambda: [driver.cuuint64_t(1), driver.CUpointer_attribute(6), first],
        "cuDeviceCanAccessPeer": lambda: [0, 1],
        "cuDeviceGetP2PAttribute": lambda: [next(iter(driver.CUdevice_P2PAttribute)), 0, 1],
        "cuEventElapsedTime": lambda: [*world.events],
        "cuFuncSetAttribute": lambda: [world.function, driver.CUfunction_attribute(8), 1024],
        "cuKernelGetAttribute": lambda: [driver.CUfunction_attribute(0), world.kernel, 0],
        "cuGetErrorName": lambda: [driver.CUresult(2)],
        "cuGetErrorString": lambda: [driver.CUresult(2)],
        "cuGraphAddKernelNode": lambda: [world.graph, [], 0, world.kernel_parameters()],
        "cuGraphAddMemAllocNode": lambda: [world.graph, [], 0, world.allocation_parameters()],
        "cuGraphAddDependencies": lambda: [world.graph, world.nodes[:1], world.nodes[1:], [], 1],
        "cuGraphKernelNodeGetParams": lambda: [world.kernel_node()],
        "cuLaunchCooperativeKernel": lambda: [world.function, 1, 1, 1, 1, 1, 1, 0, world.stream, 0],
        "cuLaunchKernel": lambda: [world.function, 1, 1, 1, 1, 1, 1, 0, world.stream, 0, 0],
        "cuLaunchKernelEx": lambda: [world.configuration(), world.function, 0, 0],
        "cuLibraryLoadData": lambda: [PTX, [], [], 0, [], [], 0],
        "cuMemAddressReserve": lambda: [2 * SIZE, 0, 0, 0],
        "cuMemAddressFree": lambda: [world.reserved(), 2 * SIZE],
        "cuMemCreate": lambda: [2 * SIZE, world.properties(), 0],
        "cuMemExportToShareableHandle": lambda: [world.physical(), handle, 0],
        "cuMemFree": lambda: [first],
        "cuMemFreeAsync": lambda: [world.ordered(), world.stream],
        "cuMemGetAccess": lambda: [world.location(), world.mapped()],
        "cuMemGetAllocationGranularity": lambda: [
            world.properties(),
            next(iter(driver.CUmemAllocationGranularity_flags)),
        ],
        "cuMemGetAllocationPropertiesFromHandle": lambda: [world.physical()],
        "cuMemHostRegister": lambda: [_page(world), 4096, 0],
        "cuMemMap": lambda: [world.reserved(), 2 * SIZE, 0, world.physical(), 0],
        "cuMemUnmap": lambda: [world.mapped(), 2 * SIZE],
        "cuMemRelease": lambda: [world.physical()],
        "cuMemRetainAllocationHandle": lambda: [int(world.mapped())],
        "cuMemSetAccess": lambda: [world.mapped(), 2 * SIZE, [world.access()], 1],
        "cuMemPoolCreate": lambda: [world.pool_properties()],
        "cuMemPoolDestroy": lambda: [world.pool()],
        "cuMemPoolTrimTo": lambda: [world.pool(), 0],
        "cuMemPoolGetAttribute": lambda: [world.pool(), driver.CUmemPool_attribute(4)],
        "cuMemPoolSetAttribute": lambda: [world.pool(), driver.CUmemPool_attribute(4), driver.cuuint64_t(SIZE)],
        "cuMemPoolSetAccess": lambda: [world.pool(), [world.access()], 1],
        "cuMemPoolGetAccess": lambda: [world.pool(), world.location()],
        "cuMemPoolExportToShareableHandle": lambda: [world.pool(), handle, 0],
        "cuMemAllocFromPoolAsync": lambda: [SIZE, world.pool(), world.stream],
        "cuMemAllocManaged": lambda: [SIZE, 1],
        "cuMemcpyBatchAsync": lambda: [[first], [world.pointers[1]], [4096], 1, [], [], 0, world.stream],
        "cuMemPrefetchAsync": lambda: [
            result(driver.cuMemAllocManaged(SIZE, 1)),
            SIZE,
            world.location(),
            0,
            world.stream,
        ],
        "cuMemAdvise": lambda: [
            result(driver.cuMemAllocManaged(SIZE, 1)),
            SIZE,
            driver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            world.location(),
        ],
        "cuDeviceSetMemPool": lambda: [0, world.pool()],
        "cuLibraryGetGlobal": lambda: [world.library, b"table"],
        "cuModuleGetGlobal": lambda: [world.module, b"table"],
        "cuParamSetv": lambda: [world.function, 0, world.pinned, 4],
        "cuPointerGetAttribute": lambda: [driver.CUpointer_attribute(2), first],
        "cuStreamBeginCapture": lambda: [world.stream, relaxed],
        "cuStreamEndCapture": lambda: [world.capturing()],
        "cuThreadExchangeStreamCaptureMode": lambda: [relaxed],
        "cuGreenCtxCreate": lambda: [None, 0, 1],
        "cuMemHostUnregister": lambda: [_registered(world)],
    }
    return special[name]() if name in special else None


def _descriptor(world: World) -> Any:
    description = world.driver.CUDA_ARRAY3D_DESCRIPTOR()
    description.Width = description.Height = 64
    description.Format = world.driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    description.NumChannels = 1
    return description


def _page(world: World) -> int:
    start = ctypes.addressof((ctypes.c_char * SIZE).from_buffer(world.bytes))
    return (start + 4095) // 4096 * 4096


def _exported(world: World, handle: Any) -> int:
    return int(result(world.driver.cuMemExportToShareableHandle(world.physical(), handle, 0)))


def _shared(world: World, handle: Any) -> Any:
    pool = world.pool()
    result(world.driver.cuMemPoolExportToShareableHandle(pool, handle, 0))
    return pool


def _exported_pool(world: World, handle: Any) -> int:
    return int(result(world.driver.cuMemPoolExportToShareableHandle(world.pool(), handle, 0)))


def _registered(world: World) -> int:
    page = _page(world)
    result(world.driver.cuMemHostRegister(page, 4096, 0))
    return page


def by_type(driver: Any, annotation: str) -> Any:
    """An empty list, the first member of an enumeration, an empty structure."""
    if "list[" in annotation:
        return []
    kind = getattr(driver, re.sub(r"Optional\[(\w+)\]", r"\1", annotation))
    return next(iter(kind)) if hasattr(kind, "__members__") else kind()


def _arguments(world: World, name: str, function: Any) -> list[Any]:
    given = _for(world, name)
    if given is not None:
        return given
    names = _by_name(world)
    return [
        by_type(world.driver, parameter.annotation)
        if isinstance(parameter.annotation, str)
        else names.get(parameter.name, 0)
        for parameter in inspect.signature(function).parameters.values()
    ]


def _call(driver: Any, name: str) -> list[Answer]:
    world = World(driver)
    function = getattr(driver, name)
    try:
        arguments = _arguments(world, name, function)
        answer = function(*arguments)
    except (TypeError, ValueError, OverflowError, AttributeError, RuntimeError) as error:
        return [f"{type(error).__name__}: {error}", []]
    finally:
        world.end()
    code, *rest = answer if isinstance(answer, tuple) else (answer,)
    plain = [value if isinstance(value, int | str) else value.decode() for value in rest if isinstance(value, _PLAIN)]
    return [getattr(code, "name", str(code)), plain]


def functions(driver: Any) -> list[str]:
    found = {name: getattr(driver, name) for name in dir(driver) if re.match(r"cu[A-Z]", name)}
    return sorted(name for name, value in found.items() if callable(value) and not isinstance(value, type))


def bindings_called(symbols: list[str]) -> dict[str, list[Answer]]:
    """By function of the bindings: its result, plain values, and the driver's functions that were called for it."""
    from cuda.bindings import driver

    result(driver.cuInit(0))
    found, before = {}, calls_made(symbols)
    for name in functions(driver):
        answer, after = _call(driver, name), calls_made(symbols)
        found[name] = [*answer, sorted(symbol for symbol, count in after.items() if count != before.get(symbol, 0))]
        before = after
    return found
