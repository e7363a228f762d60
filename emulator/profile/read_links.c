/* "topology", "nvlink" and "cpus": how the GPUs are joined with each other and with the processors. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

static const struct choice levels[] = { /* NVML's numbers */
    {"internal", 0}, {"single", 10}, {"multiple", 20}, {"hostbridge", 30}, {"node", 40}, {"system", 50}, {NULL, 0},
};
enum { LEVEL_SYSTEM = 50 };

static const struct choice link_versions[] = { /* NVML's numbers */
    {"1.0", 1}, {"2.0", 2}, {"2.2", 3}, {"3.0", 4}, {"3.1", 5}, {"4.0", 6}, {"5.0", 7}, {NULL, 0},
};

enum via { DIRECT, SWITCH };
static const struct choice vias[] = {{"direct", DIRECT}, {"switch", SWITCH}, {NULL, 0}};

struct tree {
    uint32_t base;
    const struct json *groups;
};

struct group {
    uint32_t level;
    const struct json *gpus;
};

struct connection {
    uint32_t links, version, via;
    const struct json *gpus, *switches;
};

static const struct field tree_fields[] = {
    {"default", FIELD_CHOICE, false, MEMBER(struct tree, base), .choices = levels},
    {"groups", FIELD_NODE, false, MEMBER(struct tree, groups), .kind = JSON_ARRAY},
    {NULL},
};

static const struct field group_fields[] = {
    {"level", FIELD_CHOICE, true, MEMBER(struct group, level), .choices = levels},
    {"gpus", FIELD_NODE, true, MEMBER(struct group, gpus), .kind = JSON_ARRAY},
    {NULL},
};

static const struct field connection_fields[] = {
    {"gpus", FIELD_NODE, true, MEMBER(struct connection, gpus), .kind = JSON_ARRAY},
    {"links", FIELD_WHOLE, true, MEMBER(struct connection, links), .low = 1, .high = MAX_LINKS},
    {"version", FIELD_CHOICE, true, MEMBER(struct connection, version), .choices = link_versions},
    {"via", FIELD_CHOICE, true, MEMBER(struct connection, via), .choices = vias},
    {"switches", FIELD_NODE, false, MEMBER(struct connection, switches), .kind = JSON_ARRAY},
    {NULL},
};

bool read_positions(const struct source *source, const struct json *list, const struct machine_image *image, unsigned *positions, unsigned *count)
{
    bool seen[MAX_GPUS] = {false};
    int64_t most = (int64_t)image->state.gpu_count - 1, position;
    *count = 0;
    for (const struct json *node = list->first; node != NULL; node = node->next) {
        if (!node_whole(source, node, "a GPU's position", 0, most, &position))
            return false;
        if (seen[position])
            return NODE_FAIL(source, node, "GPU %d stands here twice", (int)position);
        seen[position] = true;
        positions[(*count)++] = (unsigned)position;
    }
    return true;
}

bool read_bus_id(const struct source *source, const struct json *node, char *out, uint32_t *address)
{
    static const char tail[] = ":xx:xx.0"; /* x: a hex digit */
    if (!node_is(source, node, JSON_STRING, "a bus id"))
        return false;
    size_t digits = strspn(node->string, "0123456789abcdefABCDEF"), i = 0;
    const char *rest = node->string + digits;
    while (tail[i] != '\0' && (tail[i] == 'x' ? isxdigit((unsigned char)rest[i]) : rest[i] == tail[i]))
        i++;
    if ((digits != 4 && digits != 8) || tail[i] != '\0' || rest[i] != '\0' || strtoul(rest + 4, NULL, 16) > 31)
        return NODE_FAIL(source, node, "\"%.32s\" is not a PCI address like \"00000000:07:00.0\"", node->string);
    unsigned domain = (unsigned)strtoul(node->string, NULL, 16), bus = (unsigned)strtoul(rest + 1, NULL, 16) & 0xff,
             device = (unsigned)strtoul(rest + 4, NULL, 16) & 0x1f;
    snprintf(out, BUS_ID_SIZE, "%08X:%02X:%02X.0", domain, bus, device);
    if (address != NULL) {
        address[0] = domain;
        address[1] = bus;
        address[2] = device;
    }
    return true;
}

static bool read_group(const struct source *source, const struct json *node, struct machine_image *image)
{
    struct group group = {0};
    unsigned positions[MAX_GPUS], count;
    if (!node_is(source, node, JSON_OBJECT, "a group") || !fields_read(source, group_fields, NULL, node, &group) ||
        !fields_require(source, group_fields, node, NULL) || !read_positions(source, group.gpus, image, positions, &count))
        return false;
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count; j++) {
            uint8_t *level = &image->gpus[positions[i]].facts.level[positions[j]];
            if (i != j && group.level < *level)
                *level = (uint8_t)group.level;
        }
    }
    return true;
}

bool read_topology(const struct source *source, const struct parts *parts, struct machine_image *image)
{
    struct tree tree = {.base = LEVEL_SYSTEM};
    if (parts->topology != NULL && !fields_read(source, tree_fields, NULL, parts->topology, &tree))
        return false;
    for (unsigned i = 0; i < image->state.gpu_count; i++) {
        for (unsigned j = 0; j < image->state.gpu_count; j++)
            image->gpus[i].facts.level[j] = i == j ? 0 : (uint8_t)tree.base;
    }
    for (const struct json *node = tree.groups == NULL ? NULL : tree.groups->first; node != NULL; node = node->next) {
        if (!read_group(source, node, image))
            return false;
    }
    return true;
}

static bool add_link(const struct source *source, const struct json *node, struct machine_image *image, unsigned position,
                     const struct connection *connection, struct gpu_link link)
{
    struct gpu_facts *facts = &image->gpus[position].facts;
    if (facts->link_count == MAX_LINKS)
        return NODE_FAIL(source, node, "GPU %u would have more than %d links", position, MAX_LINKS);
    if (facts->link_count > 0 && facts->link_version != connection->version)
        return NODE_FAIL(source, node, "GPU %u would have links of two versions", position);
    facts->link_version = connection->version;
    facts->links[facts->link_count++] = link;
    return true;
}

static bool connect_directly(const struct source *source, const struct json *node, struct machine_image *image,
                             const struct connection *connection, const unsigned *positions, unsigned count)
{
    if (connection->switches != NULL)
        return NODE_FAIL(source, connection->switches, "\"switches\" goes with \"via\": \"switch\" only");
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count; j++) {
            for (unsigned link = 0; i != j && link < connection->links; link++) {
                if (!add_link(source, node, image, positions[i], connection, (struct gpu_link){(int32_t)positions[j], -1}))
                    return false;
            }
        }
    }
    return true;
}

/* The number of a switch in the machine; known ones are found again by their bus id. */
static bool read_switch(const struct source *source, const struct json *node, struct shared_state *state, unsigned *number)
{
    char bus_id[BUS_ID_SIZE];
    if (!read_bus_id(source, node, bus_id, NULL))
        return false;
    for (*number = 0; *number < state->switch_count; (*number)++) {
        if (strcmp(state->switches[*number], bus_id) == 0)
            return true;
    }
    if (state->switch_count == MAX_SWITCHES)
        return NODE_FAIL(source, node, "more than %d switches", MAX_SWITCHES);
    strcpy(state->switches[state->switch_count++], bus_id);
    return true;
}

static bool connect_by_switches(const struct source *source, const struct json *node, struct machine_image *image,
                                const struct connection *connection, const unsigned *positions, unsigned count)
{
    unsigned numbers[MAX_SWITCHES], switches = 0;
    if (connection->switches == NULL || connection->switches->count == 0)
        return NODE_FAIL(source, node, "\"via\": \"switch\" needs the bus ids of the switches in \"switches\"");
    if (connection->switches->count > MAX_SWITCHES)
        return NODE_FAIL(source, connection->switches, "more than %d switches", MAX_SWITCHES);
    for (const struct json *id = connection->switches->first; id != NULL; id = id->next) {
        if (!read_switch(source, id, &image->state, &numbers[switches++]))
            return false;
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned link = 0; link < connection->links; link++) {
            struct gpu_link to = {-1, (int32_t)numbers[link % switches]};
            if (!add_link(source, node, image, positions[i], connection, to))
                return false;
        }
    }
    return true;
}

bool read_nvlink(const struct source *source, const struct parts *parts, struct machine_image *image)
{
    for (const struct json *node = parts->nvlink == NULL ? NULL : parts->nvlink->first; node != NULL; node = node->next) {
        struct connection connection = {0};
        unsigned positions[MAX_GPUS], count;
        if (!node_is(source, node, JSON_OBJECT, "a connection") || !fields_read(source, connection_fields, NULL, node, &connection) ||
            !fields_require(source, connection_fields, node, NULL) || !read_positions(source, connection.gpus, image, positions, &count))
            return false;
        bool done = connection.via == DIRECT ? connect_directly(source, node, image, &connection, positions, count)
                                             : connect_by_switches(source, node, image, &connection, positions, count);
        if (!done)
            return false;
    }
    return true;
}
