/* See occupants.h: CUDA processes, and memory that none of them is charged for, in the terms of a status, as NVML and the command show it. */
#include <stdlib.h>
#include <string.h>

#include "derive.h"
#include "exported.h"
#include "occupants.h"

#define MIB (UINT64_C(1) << 20)

/* VCUDA_EMULATOR_PIDS=host: pids as the proprietary module reports them, the same for each caller. */
static bool outer_pids(void)
{
    const char *asked = getenv("VCUDA_EMULATOR_PIDS");
    return asked != NULL && strcmp(asked, "host") == 0;
}

static uint32_t percent(uint64_t part, uint64_t whole)
{
    uint64_t rounded = (part * 100 + whole / 2) / whole;
    return rounded < 100 ? (uint32_t)rounded : 100;
}

static struct gpu_process in_terms(const struct occupant *occupant, bool outer)
{
    struct gpu_process process = {.kind = PROCESS_COMPUTE, .memory_mib = (occupant->bytes + MIB - 1) / MIB};
    process.pid = outer ? occupant->outer_pid : occupant->pid;
    process.outer_pid = occupant->outer_pid;
    process.sm = percent(occupant->sixth_ns, SAMPLE_NS);
    process.memory_util = process.sm * 6 / 10;
    memcpy(process.name, occupant->name, sizeof process.name);
    return process;
}

static uint32_t with_scripted(const struct gpu_status *status, uint64_t second_ns)
{
    uint32_t sum = scripted_utilisation(status) + percent(second_ns, 6 * SAMPLE_NS);
    return sum < 100 ? sum : 100;
}

/* Millijoules: what the GPU takes above idling while a process has work. */
static uint64_t busy_energy(const struct gpu_facts *facts, const struct gpu_status *status, uint64_t busy_ns)
{
    uint64_t watts = status->power_limit_w > facts->power_idle_w ? status->power_limit_w - facts->power_idle_w : 0;
    return busy_ns / 1000000 * watts;
}

void show_occupants(const struct machine *machine, const char *state_path, unsigned gpu, struct gpu_status *status)
{
    struct occupancy occupancy;
    bool outer = outer_pids();
    if (atomic_load(&cuda_section(machine)->gpus[gpu].exported) != 0)
        status->used_mib += (exported_without_maker(state_path, gpu) + MIB - 1) / MIB;
    if (!occupancy_read(machine, state_path, gpu, &occupancy) || (occupancy.count == 0 && occupancy.busy_ns == 0)) {
        occupancy_free(&occupancy);
        return;
    }
    if (status->gpu_util < 0)
        status->live_util = with_scripted(status, occupancy.second_ns) + 1;
    status->energy_mj += busy_energy(&state_gpu(machine, gpu)->facts, status, occupancy.busy_ns);
    for (unsigned i = 0; i < occupancy.count; i++) {
        struct gpu_process process = in_terms(&occupancy.occupants[i], outer);
        if (status->process_count < MAX_PROCESSES)
            status->processes[status->process_count++] = process;
        else
            status->used_mib += process.memory_mib;
    }
    occupancy_free(&occupancy);
}
