/* "models" and "gpus": the facts and the first status of each GPU, with everything left out filled in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../shared/derive.h"
#include "parts.h"

/* Which GPU is being read: its facts and its first status, side by side. */
struct draft {
    char model[64];
    struct gpu_facts facts;
    struct gpu_status status;
};

enum { MIB_MOST = 1 << 24, WATTS_MOST = 10000, MHZ_MOST = 20000 };

static const struct choice brands[] = { /* NVML's numbers */
    {"nvidia", 14}, {"tesla", 2}, {"geforce", 5}, {"quadro", 1}, {"rtx", 13}, {"titan", 6}, {NULL, 0},
};
enum { BRAND_GEFORCE = 5, BRAND_NVIDIA = 14 };

static const struct choice compute_modes[] = {
    {"default", 0}, {"exclusive_thread", 1}, {"prohibited", 2}, {"exclusive_process", 3}, {NULL, 0},
};

#define FACT(member) MEMBER(struct draft, facts.member)
#define STATUS(member) MEMBER(struct draft, status.member)

static const struct field model_fields[] = {
    {"name", FIELD_TEXT, true, FACT(name)},
    {"memory_mib", FIELD_WHOLE, true, FACT(memory_mib), .low = 1, .high = MIB_MOST},
    {"compute_capability", FIELD_VERSION, true, FACT(capability_major)},
    {"reserved_mib", FIELD_WHOLE, false, FACT(reserved_mib), .low = 0, .high = MIB_MOST},
    {"bar1_mib", FIELD_WHOLE, false, FACT(bar1_mib), .low = 1, .high = MIB_MOST},
    {"brand", FIELD_CHOICE, false, FACT(brand), .choices = brands},
    {"pci_id", FIELD_HEX, false, FACT(pci_id)},
    {"pci_subsystem_id", FIELD_HEX, false, FACT(pci_subsystem_id)},
    {"cores", FIELD_WHOLE, false, FACT(cores), .low = 1, .high = 1 << 20},
    {"memory_bus_bits", FIELD_WHOLE, false, FACT(memory_bus_bits), .low = 32, .high = 1 << 16},
    {"pcie_generation", FIELD_WHOLE, false, FACT(pcie_generation), .low = 1, .high = 7},
    {"pcie_width", FIELD_WHOLE, false, FACT(pcie_width), .low = 1, .high = 32},
    {"power_limit_w", FIELD_WHOLE, false, FACT(power_limit_w), .low = 1, .high = WATTS_MOST},
    {"power_min_w", FIELD_WHOLE, false, FACT(power_min_w), .low = 1, .high = WATTS_MOST},
    {"power_max_w", FIELD_WHOLE, false, FACT(power_max_w), .low = 1, .high = WATTS_MOST},
    {"power_idle_w", FIELD_WHOLE, false, FACT(power_idle_w), .low = 0, .high = WATTS_MOST},
    {"sm_clock_mhz", FIELD_WHOLE, false, FACT(sm_clock_mhz), .low = 1, .high = MHZ_MOST},
    {"memory_clock_mhz", FIELD_WHOLE, false, FACT(memory_clock_mhz), .low = 1, .high = MHZ_MOST},
    {"fans", FIELD_WHOLE, false, FACT(fans), .low = 0, .high = 8},
    {"ecc", FIELD_FLAG, false, FACT(ecc)},
    {"mig_capable", FIELD_FLAG, false, FACT(mig_capable)},
    {"part_number", FIELD_TEXT, false, FACT(part_number)},
    {"vbios", FIELD_TEXT, false, FACT(vbios)},
    {NULL},
};

static const struct field gpu_fields[] = {
    {"model", FIELD_TEXT, true, MEMBER(struct draft, model)},
    {"minor", FIELD_WHOLE, false, FACT(minor), .low = 0, .high = 1023},
    {"uuid", FIELD_TEXT, false, FACT(uuid)},
    {"serial", FIELD_TEXT, false, FACT(serial)},
    {"bus_id", FIELD_TEXT, false, FACT(bus_id)},
    {"numa", FIELD_WHOLE, false, FACT(numa), .low = -1, .high = 1023},
    {"compute_mode", FIELD_CHOICE, false, STATUS(compute_mode), .choices = compute_modes},
    {"mig", FIELD_FLAG, false, STATUS(mig)},
    {"persistence", FIELD_FLAG, false, STATUS(persistence)},
    {"gpu_util", FIELD_WHOLE, false, STATUS(gpu_util), .low = 0, .high = 100},
    {"memory_util", FIELD_WHOLE, false, STATUS(memory_util), .low = 0, .high = 100},
    {"used_mib", FIELD_WHOLE, false, STATUS(used_mib), .low = 0, .high = MIB_MOST},
    {"temperature_c", FIELD_WHOLE, false, STATUS(temperature_c), .low = 0, .high = 150},
    {"power_w", FIELD_WHOLE, false, STATUS(power_w), .low = 0, .high = WATTS_MOST},
    {NULL},
};

static void start_draft(struct draft *draft, unsigned position)
{
    memset(draft, 0, sizeof *draft);
    draft->facts.minor = position;
    draft->facts.numa = -1;
    draft->facts.brand = BRAND_NVIDIA;
    draft->facts.reserved_mib = UINT64_MAX;
    draft->facts.cores = 1024;
    draft->facts.memory_bus_bits = 256;
    draft->facts.pcie_generation = 4;
    draft->facts.pcie_width = 16;
    draft->facts.power_limit_w = 250;
    draft->facts.power_idle_w = 25;
    draft->facts.sm_clock_mhz = 1500;
    draft->facts.memory_clock_mhz = 5000;
    draft->status.gpu_util = draft->status.memory_util = -1;
    draft->status.temperature_c = draft->status.power_w = -1;
}

static uint64_t name_hash(const char *one, const char *other)
{
    uint64_t hash = hash_bytes(HASH_START, one, strlen(one) + 1); /* with its zero byte */
    return hash_bytes(hash, other, strlen(other));
}

static void derive_names(struct gpu_facts *facts, const char *profile)
{
    uint64_t high = name_hash(profile, facts->bus_id), low = name_hash(facts->bus_id, profile);
    if (facts->uuid[0] == '\0')
        snprintf(facts->uuid, sizeof facts->uuid, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32), (unsigned)(high >> 16 & 0xffff),
                 (unsigned)(high & 0xffff), (unsigned)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
    if (facts->brand == BRAND_GEFORCE)
        facts->serial[0] = '\0';
    else if (facts->serial[0] == '\0')
        snprintf(facts->serial, sizeof facts->serial, "%llu", (unsigned long long)(UINT64_C(1320000000000) + high % UINT64_C(10000000000)));
}

static void derive_sizes(struct draft *draft)
{
    struct gpu_facts *facts = &draft->facts;
    if (facts->reserved_mib == UINT64_MAX)
        facts->reserved_mib = facts->memory_mib / 128;
    if (facts->bar1_mib == 0) {
        for (facts->bar1_mib = 1; facts->bar1_mib < facts->memory_mib; facts->bar1_mib *= 2)
            ;
    }
    if (facts->power_max_w == 0)
        facts->power_max_w = facts->power_limit_w;
    if (facts->power_min_w == 0)
        facts->power_min_w = (facts->power_limit_w + 1) / 2;
    if (facts->pci_id == 0)
        facts->pci_id = 0x000010DE;
    draft->status.power_limit_w = facts->power_limit_w;
    draft->status.ecc = draft->status.ecc_pending = facts->ecc;
    draft->status.mig_pending = draft->status.mig;
    draft->status.energy_since_us = clock_us();
}

static bool check_draft(const struct source *source, const struct json *node, const struct draft *draft)
{
    const struct gpu_facts *facts = &draft->facts;
    if (facts->reserved_mib >= facts->memory_mib)
        return NODE_FAIL(source, node, "reserved_mib (%llu) leaves nothing of memory_mib (%llu)", (unsigned long long)facts->reserved_mib,
                         (unsigned long long)facts->memory_mib);
    if (facts->power_min_w > facts->power_limit_w || facts->power_limit_w > facts->power_max_w)
        return NODE_FAIL(source, node, "power_limit_w (%u) is not between power_min_w (%u) and power_max_w (%u)", facts->power_limit_w,
                         facts->power_min_w, facts->power_max_w);
    if (draft->status.mig && !facts->mig_capable)
        return NODE_FAIL(source, node, "mig is on, but the model is not mig_capable");
    return true;
}

static bool check_uuid(const struct source *source, const struct json *node, const char *uuid)
{
    static const char pattern[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    size_t i = 0;
    for (; pattern[i] != '\0' && uuid[i] != '\0'; i++) {
        if (pattern[i] == 'x' ? strchr("0123456789abcdef", uuid[i]) == NULL : pattern[i] != uuid[i])
            break;
    }
    if (pattern[i] == '\0' && uuid[i] == '\0')
        return true;
    return NODE_FAIL(source, node, "uuid must look like %s (x a lower-case hex digit)", pattern);
}

static bool check_unique(const struct source *source, const struct json *node, const struct machine_image *image, const struct gpu_facts *facts)
{
    for (unsigned i = 0; i < image->state.gpu_count; i++) {
        const struct gpu_facts *other = &image->gpus[i].facts;
        if (other->minor == facts->minor)
            return NODE_FAIL(source, node, "minor %u belongs to GPU %u already", facts->minor, i);
        if (strcmp(other->bus_id, facts->bus_id) == 0)
            return NODE_FAIL(source, node, "bus_id %s belongs to GPU %u already", facts->bus_id, i);
        if (strcmp(other->uuid, facts->uuid) == 0)
            return NODE_FAIL(source, node, "uuid %s belongs to GPU %u already", facts->uuid, i);
        if (facts->serial[0] != '\0' && strcmp(other->serial, facts->serial) == 0)
            return NODE_FAIL(source, node, "serial %s belongs to GPU %u already", facts->serial, i);
    }
    return true;
}

static bool place_on_bus(const struct source *source, const struct json *node, unsigned position, struct gpu_facts *facts)
{
    const struct json *bus_id = json_member(node, "bus_id");
    uint32_t address[3] = {0, 1 + 3 * position, 0};
    if (bus_id == NULL)
        snprintf(facts->bus_id, sizeof facts->bus_id, "%08X:%02X:%02X.0", address[0], address[1] & 0xff, address[2]);
    else if (!read_bus_id(source, bus_id, facts->bus_id, address))
        return false;
    facts->domain = address[0];
    facts->bus = address[1];
    facts->device = address[2];
    return true;
}

static bool read_draft(const struct source *source, const struct parts *parts, const struct json *node, unsigned position, struct draft *draft)
{
    const struct json *model, *uuid = json_member(node, "uuid");
    start_draft(draft, position);
    if (!node_is(source, node, JSON_OBJECT, "a GPU") || !fields_read(source, gpu_fields, model_fields, node, draft) ||
        !fields_require(source, gpu_fields, node, NULL))
        return false;
    model = json_member(parts->models, draft->model);
    if (model == NULL)
        return NODE_FAIL(source, json_member(node, "model"), "there is no model \"%.64s\" in \"models\"", draft->model);
    /* The model first: what the GPU says itself wins. */
    if (!fields_read(source, model_fields, gpu_fields, model, draft) || !fields_read(source, model_fields, gpu_fields, node, draft) ||
        !fields_require(source, model_fields, node, model))
        return false;
    if (!place_on_bus(source, node, position, &draft->facts))
        return false;
    derive_names(&draft->facts, parts->name);
    derive_sizes(draft);
    return check_draft(source, node, draft) && (uuid == NULL || check_uuid(source, uuid, draft->facts.uuid));
}

/* Also those that no GPU names: a mistake there should not wait for its first user. */
static bool check_models(const struct source *source, const struct parts *parts, struct draft *draft)
{
    for (const struct json *model = parts->models->first; model != NULL; model = model->next) {
        start_draft(draft, 0);
        if (!node_is(source, model, JSON_OBJECT, "a model") || !fields_read(source, model_fields, NULL, model, draft))
            return false;
    }
    return true;
}

bool read_gpus(const struct source *source, const struct parts *parts, struct machine_image *image)
{
    struct draft *draft = malloc(sizeof *draft);
    bool done = draft != NULL && check_models(source, parts, draft);
    if (parts->gpus->count > MAX_GPUS)
        done = NODE_FAIL(source, parts->gpus, "more than %d GPUs", MAX_GPUS);
    for (const struct json *node = parts->gpus->first; done && node != NULL; node = node->next) {
        unsigned position = image->state.gpu_count;
        done = read_draft(source, parts, node, position, draft) && check_unique(source, node, image, &draft->facts);
        if (done) {
            image->gpus[position].facts = draft->facts;
            image->gpus[position].status[0] = draft->status;
            image->state.gpu_count++;
        }
    }
    free(draft);
    return done;
}
