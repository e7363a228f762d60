/* "cpus" and "processes": the machine around the GPUs. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

struct node_part {
    int32_t numa;
    const struct json *list;
};

static const struct field node_fields[] = {
    {"numa", FIELD_WHOLE, true, MEMBER(struct node_part, numa), .low = 0, .high = 1023},
    {"list", FIELD_NODE, true, MEMBER(struct node_part, list), .kind = JSON_STRING},
    {NULL},
};

struct process_part {
    uint32_t gpu;
    struct gpu_process process;
};

static const struct choice kinds[] = {{"compute", PROCESS_COMPUTE}, {"graphics", PROCESS_GRAPHICS}, {"mps", PROCESS_MPS}, {NULL, 0}};

#define PROCESS(member) MEMBER(struct process_part, process.member)

static const struct field process_fields[] = {
    {"gpu", FIELD_WHOLE, true, MEMBER(struct process_part, gpu), .low = 0, .high = MAX_GPUS - 1},
    {"pid", FIELD_WHOLE, true, PROCESS(pid), .low = 1, .high = 1 << 22},
    {"memory_mib", FIELD_WHOLE, true, PROCESS(memory_mib), .low = 0, .high = 1 << 24},
    {"sm", FIELD_WHOLE, false, PROCESS(sm), .low = 0, .high = 100},
    {"memory_util", FIELD_WHOLE, false, PROCESS(memory_util), .low = 0, .high = 100},
    {"type", FIELD_CHOICE, false, PROCESS(kind), .choices = kinds},
    {"name", FIELD_TEXT, false, PROCESS(name)},
    {NULL},
};

/* One number of a list of cores; NULL where there is none or it is too large. */
static const char *read_cpu(const char *at, unsigned *cpu)
{
    const char *start = at;
    for (*cpu = 0; isdigit((unsigned char)*at); at++) {
        *cpu = *cpu * 10 + (unsigned)(*at - '0');
        if (*cpu >= MAX_CPUS)
            return NULL;
    }
    return at == start ? NULL : at;
}

/* A list as the kernel writes it: "0-15,32-47". */
static bool read_list(const char *at, uint64_t *mask)
{
    unsigned first, last;
    for (;; at++) {
        at = read_cpu(at, &first);
        if (at == NULL)
            return false;
        last = first;
        if (*at == '-' && (at = read_cpu(at + 1, &last)) == NULL)
            return false;
        if (last < first)
            return false;
        for (unsigned cpu = first; cpu <= last; cpu++)
            mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
        if (*at != ',')
            return *at == '\0';
    }
}

bool read_cpus(const struct source *source, const struct parts *parts, struct machine_image *image)
{
    struct shared_state *state = &image->state;
    if (parts->cpus != NULL && parts->cpus->count > MAX_NODES)
        return NODE_FAIL(source, parts->cpus, "more than %d NUMA nodes", MAX_NODES);
    for (const struct json *node = parts->cpus == NULL ? NULL : parts->cpus->first; node != NULL; node = node->next) {
        struct node_part part = {0};
        struct node_cpus *cpus = &state->nodes[state->node_count];
        if (!node_is(source, node, JSON_OBJECT, "an entry of cpus") || !fields_read(source, node_fields, NULL, node, &part) ||
            !fields_require(source, node_fields, node, NULL))
            return false;
        for (unsigned i = 0; i < state->node_count; i++) {
            if (state->nodes[i].numa == part.numa)
                return NODE_FAIL(source, node, "NUMA node %d stands here twice", part.numa);
        }
        cpus->numa = part.numa;
        if (!read_list(part.list->string, cpus->mask))
            return NODE_FAIL(source, part.list, "list must be cores below %d like \"0-15,32-47\"", MAX_CPUS);
        state->node_count++;
    }
    return true;
}

bool read_processes(const struct source *source, const struct parts *parts, struct machine_image *image)
{
    for (const struct json *node = parts->processes == NULL ? NULL : parts->processes->first; node != NULL; node = node->next) {
        struct process_part part = {0};
        if (!node_is(source, node, JSON_OBJECT, "a process") || !fields_read(source, process_fields, NULL, node, &part) ||
            !fields_require(source, process_fields, node, NULL))
            return false;
        if (part.gpu >= image->state.gpu_count)
            return NODE_FAIL(source, json_member(node, "gpu"), "there is no GPU at position %u", part.gpu);
        struct gpu_status *status = &image->gpus[part.gpu].status[0];
        if (status->process_count == MAX_PROCESSES)
            return NODE_FAIL(source, node, "more than %d processes on GPU %u", MAX_PROCESSES, part.gpu);
        for (uint64_t i = 0; i < status->process_count; i++) {
            if (status->processes[i].pid == part.process.pid)
                return NODE_FAIL(source, node, "process %u stands on GPU %u twice", part.process.pid, part.gpu);
        }
        status->processes[status->process_count++] = part.process;
    }
    return true;
}
