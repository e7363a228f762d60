/* How GPUs are joined through the machine: common ancestors, NUMA nodes, cores, and whether peers reach each other. */
#include <string.h>

#include "../shared/links.h"
#include "session.h"

enum { WORD_BITS = 8 * sizeof(unsigned long) };

static bool is_level(nvmlGpuTopologyLevel_t level)
{
    return (unsigned)level <= NVML_TOPOLOGY_SYSTEM && (unsigned)level % 10 == 0;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    OPEN(first, one, level);
    OPEN(second, other, level);
    *level = first.facts->level[second.slot];
    return NVML_SUCCESS;
}

typedef bool chooser(const struct view *view, unsigned slot, unsigned argument);

/* With a count of 0 the number, else the first `count` handles: NVML's protocol for sets of GPUs. */
static nvmlReturn_t give_set(const struct session *session, chooser *chosen, const struct view *view, unsigned argument,
                             unsigned int *count, nvmlDevice_t *devices)
{
    unsigned found = 0, total = atomic_load(&session->count);
    if (*count != 0 && devices == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned index = 0; index < total; index++) {
        unsigned slot = atomic_load(&session->slots[index]);
        if (!chosen(view, slot, argument))
            continue;
        if (found < *count)
            devices[found] = device_handle(slot);
        found++;
    }
    *count = *count == 0 || found < *count ? found : *count;
    return NVML_SUCCESS;
}

static bool is_at_level(const struct view *view, unsigned slot, unsigned level)
{
    return slot != view->slot && view->facts->level[slot] == level;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
                                              nvmlDevice_t *devices)
{
    OPEN(v, device, count);
    if (!is_level(level))
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_set(v.session, is_at_level, &v, level, count, devices);
}

static const struct node_cpus *cpus_of(const struct shared_state *state, int numa)
{
    for (unsigned i = 0; i < state->node_count; i++) {
        if (state->nodes[i].numa == numa)
            return &state->nodes[i];
    }
    return NULL;
}

static bool is_near_cpu(const struct view *view, unsigned slot, unsigned cpu)
{
    const struct machine *machine = &view->session->machine;
    const struct node_cpus *cpus = cpus_of(machine->state, state_gpu(machine, slot)->facts.numa);
    return cpus != NULL && cpu < MAX_CPUS && (cpus->mask[cpu / 64] >> cpu % 64 & 1) != 0;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
    struct view view;
    nvmlReturn_t error = session_current(&view.session);
    if (error != NVML_SUCCESS)
        return error;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_set(view.session, is_near_cpu, &view, cpu, count, devices);
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
