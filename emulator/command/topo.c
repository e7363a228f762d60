/* `topo`: the matrix as `nvidia-smi topo -m` draws it, with its tabs, for programs that parse it. */
#include <stdio.h>
#include <string.h>

#include "../shared/links.h"
#include "command.h"

static const char *level_name(unsigned level)
{
    static const char *const names[] = {"PIX", "PIX", "PXB", "PHB", "NODE", "SYS"}; /* NVML's levels by tens */
    return names[level / 10 < 5 ? level / 10 : 5];
}

static bool is_there(const struct machine *machine, unsigned slot)
{
    struct gpu_status status;
    state_read(state_gpu(machine, slot), &status);
    return status.presence != REMOVED;
}

static void print_list(const uint64_t *mask)
{
    const char *comma = "";
    for (unsigned cpu = 0; cpu < MAX_CPUS; cpu++) {
        unsigned last = cpu;
        if ((mask[cpu / 64] >> cpu % 64 & 1) == 0)
            continue;
        while (last + 1 < MAX_CPUS && (mask[(last + 1) / 64] >> (last + 1) % 64 & 1) != 0)
            last++;
        if (last == cpu)
            printf("%s%u", comma, cpu);
        else
            printf("%s%u-%u", comma, cpu, last);
        comma = ",";
        cpu = last;
    }
}

static void print_affinity(const struct shared_state *state, int numa)
{
    const struct node_cpus *cpus = NULL;
    for (unsigned i = 0; i < state->node_count; i++) {
        if (state->nodes[i].numa == numa)
            cpus = &state->nodes[i];
    }
    if (cpus == NULL)
        fputs("N/A", stdout);
    else
        print_list(cpus->mask);
    if (numa < 0)
        fputs("\tN/A\t\tN/A\n", stdout);
    else
        printf("\t%d\t\tN/A\n", numa);
}

static void print_cell(const struct machine *machine, unsigned row, unsigned column)
{
    unsigned links = count_links(machine, row, column);
    if (row == column)
        fputs(" X \t", stdout);
    else if (links > 0)
        printf("NV%u\t", links);
    else
        printf("%s\t", level_name(state_gpu(machine, row)->facts.level[column]));
}

static void print_legend(void)
{
    puts("\nLegend:\n\n"
         "  X    = Self\n"
         "  SYS  = PCIe and the interconnect between NUMA nodes\n"
         "  NODE = PCIe and the interconnect between host bridges of one NUMA node\n"
         "  PHB  = PCIe and a host bridge\n"
         "  PXB  = several PCIe bridges, no host bridge\n"
         "  PIX  = at most one PCIe bridge\n"
         "  NV#  = # bonded NVLinks");
}

int command_topo(struct call *call)
{
    const struct machine *machine = &call->machine;
    unsigned count = machine->state->gpu_count, names[MAX_GPUS], next = 0;
    for (unsigned slot = 0; slot < count; slot++)
        names[slot] = is_there(machine, slot) ? next++ : MAX_GPUS;
    fputs(call->underline ? "\t\033[4m" : "\t", stdout);
    for (unsigned slot = 0; slot < count; slot++) {
        if (names[slot] < MAX_GPUS)
            printf("GPU%u\t", names[slot]);
    }
    printf("CPU Affinity\tNUMA Affinity\tGPU NUMA ID%s\n", call->underline ? "\033[0m" : "");
    for (unsigned row = 0; row < count; row++) {
        if (names[row] == MAX_GPUS)
            continue;
        printf("GPU%u\t", names[row]);
        for (unsigned column = 0; column < count; column++) {
            if (names[column] < MAX_GPUS)
                print_cell(machine, row, column);
        }
        print_affinity(machine->state, state_gpu(machine, row)->facts.numa);
    }
    print_legend();
    return DONE;
}
