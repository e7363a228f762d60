"""One object of every kind that the driver has, made through cuda-bindings.

In: the bindings' module `driver`. Out: objects, by the names of their kind. Not here: what they are for.
"""

import ctypes
import tempfile
from pathlib import Path
from typing import Any

SIZE = 1 << 20
PTX = b""".version 7.0
.target sm_50
.address_size 64
.global .align 8 .b8 table[64];
.visible .entry work()
{
ret;
}
\0"""


def result(answer: Any) -> Any:
    """What a call returned beside its code, which must be 0."""
    if int(answer[0]) != 0:
        raise RuntimeError(answer[0].name)
    return answer[1] if len(answer) == 2 else answer[1:]


class World:
    """One object of each kind, in the primary context of the first GPU; by the names that parameters have."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.context = result(driver.cuDevicePrimaryCtxRetain(0))
        result(driver.cuCtxSetCurrent(self.context))
        self.stream = result(driver.cuStreamCreate(1))
        self.events = [result(driver.cuEventCreate(0)) for _ in range(2)]
        for event in self.events:
            result(driver.cuEventRecord(event, self.stream))
        result(driver.cuStreamSynchronize(self.stream))
        self.pointers = [result(driver.cuMemAlloc(SIZE)) for _ in range(2)]
        self.pinned = result(driver.cuMemHostAlloc(SIZE, 2))
        self.bytes = bytearray(SIZE)
        self.module = result(driver.cuModuleLoadData(PTX))
        self.function = result(driver.cuModuleGetFunction(self.module, b"work"))
        self.library = result(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
        self.kernel = result(driver.cuLibraryGetKernel(self.library, b"work"))
        self.graph = result(driver.cuGraphCreate(0))
        self.nodes = [result(driver.cuGraphAddEmptyNode(self.graph, [], 0)) for _ in range(2)]
        self.executable = result(driver.cuGraphInstantiate(self.graph, 0))
        self.files: list[str] = []
        self.no_op = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)

    def end(self) -> None:
        for file in self.files:
            Path(file).unlink()
        self.driver.cuStreamEndCapture(self.stream)
        usual = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self.driver.cuThreadExchangeStreamCaptureMode(usual)
        self.driver.cuDevicePrimaryCtxReset(0)
        self.driver.cuDevicePrimaryCtxRelease(0)

    # ---- what takes more than one call to make ----

    def array(self, levels: int = 0) -> Any:
        description = self.driver.CUDA_ARRAY3D_DESCRIPTOR()
        description.Width = description.Height = 64
        description.Format = self.driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
        description.NumChannels = 1
        if levels:
            return result(self.driver.cuMipmappedArrayCreate(description, levels))
        return result(self.driver.cuArray3DCreate(description))

    def flat_array(self) -> Any:
        description = self.driver.CUDA_ARRAY_DESCRIPTOR()
        description.Width = description.Height = 64
        description.Format = self.driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
        description.NumChannels = 1
        return description

    def properties(self) -> Any:
        properties = self.driver.CUmemAllocationProp()
        properties.type = self.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self.location()
        properties.requestedHandleTypes = self.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return properties

    def location(self) -> Any:
        location = self.driver.CUmemLocation()
        location.type = self.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = 0
        return location

    def access(self) -> Any:
        access = self.driver.CUmemAccessDesc()
        access.location = self.location()
        access.flags = self.driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def physical(self) -> Any:
        return result(self.driver.cuMemCreate(2 * SIZE, self.properties(), 0))

    def reserved(self) -> Any:
        return result(self.driver.cuMemAddressReserve(2 * SIZE, 0, 0, 0))

    def mapped(self) -> Any:
        address = self.reserved()
        result(self.driver.cuMemMap(address, 2 * SIZE, 0, self.physical(), 0))
        return address

    def pool(self) -> Any:
        return result(self.driver.cuMemPoolCreate(self.pool_properties()))

    def pool_properties(self) -> Any:
        properties = self.driver.CUmemPoolProps()
        properties.allocType = self.driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = self.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties.location = self.location()
        return properties

    def ordered(self) -> Any:
        return result(self.driver.cuMemAllocAsync(SIZE, self.stream))

    def kernel_parameters(self) -> Any:
        parameters = self.driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self.function
        for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
            setattr(parameters, name, 1)
        return parameters

    def kernel_node(self) -> Any:
        return result(self.driver.cuGraphAddKernelNode(self.graph, [], 0, self.kernel_parameters()))

    def allocation_parameters(self) -> Any:
        parameters = self.driver.CUDA_MEM_ALLOC_NODE_PARAMS()
        parameters.poolProps = self.pool_properties()
        parameters.poolProps.handleTypes = self.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        parameters.bytesize = SIZE
        return parameters

    def configuration(self) -> Any:
        configuration = self.driver.CUlaunchConfig()
        for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
            setattr(configuration, name, 1)
        configuration.hStream = self.stream
        return configuration

    def capturing(self) -> Any:
        relaxed = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        result(self.driver.cuStreamBeginCapture(self.stream, relaxed))
        return self.stream

    def of_the_other_gpu(self) -> Any:
        return result(self.driver.cuDevicePrimaryCtxRetain(1))

    def peer(self) -> Any:
        other = self.of_the_other_gpu()
        self.driver.cuCtxEnablePeerAccess(other, 0)
        return other

    def green(self) -> Any:
        return result(self.driver.cuGreenCtxCreate(None, 0, 1))

    def fill(self) -> Any:
        parameters = self.driver.CUDA_MEMSET_NODE_PARAMS()
        parameters.dst = self.pointers[0]
        parameters.elementSize, parameters.width, parameters.height = 1, 16, 1
        return parameters

    def empty_node(self) -> Any:
        parameters = self.driver.CUgraphNodeParams()
        parameters.type = self.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY
        return parameters

    def allocated_in_graph(self) -> list[Any]:
        """The node, its number and address, as the node that frees it takes them."""
        parameters = self.allocation_parameters()
        node = result(self.driver.cuGraphAddMemAllocNode(self.graph, [], 0, parameters))
        return [[node], 1, parameters.dptr]

    def freed_in_graph(self) -> Any:
        return result(self.driver.cuGraphAddMemFreeNode(self.graph, *self.allocated_in_graph()))

    def child(self) -> Any:
        child = result(self.driver.cuGraphCreate(0))
        return result(self.driver.cuGraphAddChildGraphNode(self.graph, [], 0, child))

    def executable_kernel(self) -> list[Any]:
        node = self.kernel_node()
        return [result(self.driver.cuGraphInstantiate(self.graph, 0)), node, self.kernel_parameters()]

    def one_of_several(self) -> Any:
        parameters = self.driver.CUDA_LAUNCH_PARAMS()
        parameters.function, parameters.hStream = self.function, self.stream
        for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"):
            setattr(parameters, name, 1)
        return parameters

    def file(self) -> bytes:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(PTX)
        self.files.append(file.name)
        return file.name.encode()

    def uuid(self, digits: str) -> Any:
        self.kept = ctypes.create_string_buffer(bytes.fromhex(digits))
        return self.driver.CUuuid(ctypes.addressof(self.kept))

    def ordered_from(self, pool: Any) -> Any:
        return result(self.driver.cuMemAllocFromPoolAsync(SIZE, pool, self.stream))

    def second_context(self) -> Any:
        return result(self.driver.cuCtxCreate(None, 0, 0))
