/*
 * libFuzzer: any bytes as a limits file, ours and gpu-manager's. What is accepted must be within its bounds, and what is refused must say why.
 * `make -C library fuzz CC=clang` builds it; corpus/limits holds a good file of each kind and what earlier runs found worth keeping.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/state/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(const struct limits_outcome *outcome, const struct limits_view *view, uint32_t most)
{
    if (memchr(outcome->reason, '\0', sizeof outcome->reason) == NULL)
        abort();
    if (outcome->reason[0] != '\0')
        return;
    if (view->device_count > most || memchr(view->grant, '\0', sizeof view->grant) == NULL)
        abort();
    for (uint32_t i = 0; i < view->device_count; i++) {
        const struct limits_device *device = &view->devices[i];
        if (memchr(device->uuid, '\0', sizeof device->uuid) == NULL || device->cores == 0)
            abort();
    }
}

/* The checksum would keep the fuzzer from everything behind it: a second try has the right one. */
static void parse_sealed(const uint8_t *bytes, size_t size)
{
    struct limits_view view;
    char *sealed = malloc(size);
    if (sealed == NULL)
        return;
    memcpy(sealed, bytes, size);
    uint64_t hash = limits_checksum(sealed, size);
    memcpy(sealed + offsetof(struct limits_header, checksum), &hash, sizeof hash);
    struct limits_outcome outcome = limits_parse(sealed, size, &view);
    check(&outcome, &view, LIMITS_MAX_DEVICES);
    free(sealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits_view view;
    struct limits_outcome outcome = limits_parse((const char *)bytes, size, &view);
    check(&outcome, &view, LIMITS_MAX_DEVICES);
    outcome = limits_parse_legacy((const char *)bytes, size, &view);
    check(&outcome, &view, 1);
    if (size >= sizeof(struct limits_header))
        parse_sealed(bytes, size);
    return 0;
}
