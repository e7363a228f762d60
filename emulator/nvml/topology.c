/* How GPUs are joined through the machine: common ancestors, NUMA nodes, cores, and whether peers reach each other. */
#include <string.h>

#include "../shared/links.h"
#include "session.h"

enum { WORD_BITS = 8 * sizeof(unsigned long) };

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    OPEN(first, one, level);
    OPEN(second, other, level);
    *level = first.facts->level[second.slot];
    return NVML_SUCCESS;
}

static const struct node_cpus *cpus_of(const struct shared_state *state, int numa)
{
    for (unsigned i = 0; i < state->node_count; i++) {
        if (state->nodes[i].numa == numa)
            return &state->nodes[i];
    }
    return NULL;
}

/* Only where the GPU's own memory is a NUMA node (Grace), which no profile has. The node that a GPU hangs on is its memory affinity. */
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    OPEN(v, device, node);
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *nodes, nvmlAffinityScope_t scope)
{
    OPEN(v, device, nodes);
    if (size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (v.facts->numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(nodes, 0, size * sizeof *nodes);
    if ((unsigned)v.facts->numa < size * WORD_BITS)
        nodes[(unsigned)v.facts->numa / WORD_BITS] |= 1UL << (unsigned)v.facts->numa % WORD_BITS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *cpus, nvmlAffinityScope_t scope)
{
    OPEN(v, device, cpus);
    if (size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct node_cpus *near = cpus_of(v.session->machine.state, v.facts->numa);
    if (near == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(cpus, 0, size * sizeof *cpus);
    for (unsigned i = 0; i < MAX_CPUS && i < size * WORD_BITS; i++)
        cpus[i / WORD_BITS] |= (unsigned long)(near->mask[i / 64] >> i % 64 & 1) << i % WORD_BITS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *cpus)
{
    return nvmlDeviceGetCpuAffinityWithinScope(device, size, cpus, NVML_AFFINITY_SCOPE_NODE);
}

/* Peers of one kind reach each other over NVLink, or over PCIe as long as no link between sockets is in the way. */
static nvmlGpuP2PStatus_t peer_status(const struct view *one, const struct view *other, nvmlGpuP2PCapsIndex_t index)
{
    bool linked = count_links(&one->session->machine, one->slot, other->slot) > 0;
    if (index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS)
        return linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    if (strcmp(one->facts->name, other->facts->name) != 0)
        return NVML_P2P_STATUS_GPU_NOT_SUPPORTED;
    if (linked || one->facts->level[other->slot] < NVML_TOPOLOGY_SYSTEM)
        return NVML_P2P_STATUS_OK;
    return NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
    OPEN(first, one, status);
    OPEN(second, other, status);
    if ((unsigned)index >= NVML_P2P_CAPS_INDEX_UNKNOWN || first.slot == second.slot)
        return NVML_ERROR_INVALID_ARGUMENT;
    *status = peer_status(&first, &second, index);
    return NVML_SUCCESS;
}
