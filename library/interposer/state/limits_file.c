/*
 * Reading a limits file, ours (abi/limits.h) or gpu-manager's vcuda.config (8,240 bytes, one C struct, no magic).
 *
 * In: a path, or bytes. Out: a view, or the reason why there is none, fit to follow the file's name in a line. Every byte is taken for hostile:
 * nothing is believed before magic, version, size and checksum agree.
 * Not here: what happens with a file that is refused (limits.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { LARGEST = sizeof(struct limits_header) + LIMITS_MAX_DEVICES * sizeof(struct limits_device), LEGACY_SIZE = 8240 };
_Static_assert((int)LARGEST < (int)LEGACY_SIZE, "one buffer serves both");

/* Where vcuda.config has what counts for us. */
enum { LEGACY_SOFT = 48, LEGACY_MEMORY = 8208, LEGACY_CORES = 8216, LEGACY_HARD = 8220, LEGACY_ENABLE = 8232 };

#define REFUSE(outcome, ...) snprintf((outcome)->reason, LIMITS_REASON, __VA_ARGS__)

/* The whole file, or as much as the buffer holds; -1 with the reason. */
static ssize_t read_all(const char *path, char *bytes, size_t size, struct limits_outcome *outcome)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t length = 0, got = file < 0 ? -1 : 1;
    while (got > 0 && (size_t)length < size) {
        got = read(file, bytes + length, size - (size_t)length);
        length += got > 0 ? got : 0;
        got = got < 0 && errno == EINTR ? 1 : got;
    }
    if (got < 0) {
        char text[64];
        outcome->missing = file < 0 && (errno == ENOENT || errno == ENOTDIR);
        outcome->unread = !outcome->missing;
        REFUSE(outcome, outcome->missing ? "is missing" : "cannot be read (%s)", strerror_r(errno, text, sizeof text));
    }
    if (file >= 0)
        close(file);
    return got < 0 ? -1 : length;
}

static uint64_t fnv(const char *bytes, size_t from, size_t to, uint64_t hash)
{
    for (size_t i = from; i < to; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Over the file with the checksum's own bytes zero. */
uint64_t limits_checksum(const char *bytes, size_t size)
{
    const size_t at = offsetof(struct limits_header, checksum), after = at + sizeof(uint64_t);
    const char zeros[sizeof(uint64_t)] = {0};
    uint64_t hash = fnv(bytes, 0, at, UINT64_C(0xcbf29ce484222325));
    hash = fnv(zeros, 0, sizeof zeros, hash);
    return fnv(bytes, after, size, hash);
}

static bool header_fits(const struct limits_header *header, const char *bytes, size_t size, struct limits_outcome *outcome)
{
    if (size < sizeof *header)
        REFUSE(outcome, "is short (%zu bytes)", size);
    else if (memcmp(header->magic, LIMITS_MAGIC, sizeof header->magic) != 0)
        REFUSE(outcome, "is no limits file");
    else if (header->version != LIMITS_VERSION)
        REFUSE(outcome, "has version %u, this library reads %u", header->version, (unsigned)LIMITS_VERSION);
    else if (header->size != size)
        REFUSE(outcome, "has %zu bytes and says %u", size, header->size);
    else if (header->checksum != limits_checksum(bytes, size))
        REFUSE(outcome, "has a wrong checksum");
    else if (header->flags != 0)
        REFUSE(outcome, "has flags 0x%x that this library does not know", header->flags);
    else if (header->device_count == 0 || header->device_count > LIMITS_MAX_DEVICES ||
             size != sizeof *header + header->device_count * sizeof(struct limits_device))
        REFUSE(outcome, "has %u devices in %zu bytes", header->device_count, size);
    return outcome->reason[0] == '\0';
}

static bool devices_fit(const struct limits_view *view, struct limits_outcome *outcome)
{
    for (uint32_t i = 0; i < view->device_count; i++) {
        const struct limits_device *device = &view->devices[i];
        if (device->uuid[0] == '\0' || memchr(device->uuid, '\0', sizeof device->uuid) == NULL ||
            memchr(device->bus_id, '\0', sizeof device->bus_id) == NULL || device->cores == 0) {
            REFUSE(outcome, "has a malformed device at position %u", i);
            return false;
        }
    }
    return true;
}

struct limits_outcome limits_parse(const char *bytes, size_t size, struct limits_view *view)
{
    struct limits_outcome outcome = {0};
    struct limits_header header = {0};
    memcpy(&header, bytes, size < sizeof header ? size : sizeof header);
    *view = (struct limits_view){.origin = LIMITS_FROM_FILE};
    if (!header_fits(&header, bytes, size, &outcome))
        return outcome;
    view->generation = header.generation;
    view->device_count = header.device_count;
    memcpy(view->grant, header.grant, sizeof header.grant);
    memcpy(view->devices, bytes + sizeof header, header.device_count * sizeof(struct limits_device));
    devices_fit(view, &outcome);
    return outcome;
}

static int32_t word_at(const char *bytes, size_t offset)
{
    int32_t word;
    memcpy(&word, bytes + offset, sizeof word);
    return word;
}

struct limits_outcome limits_parse_legacy(const char *bytes, size_t size, struct limits_view *view)
{
    struct limits_outcome outcome = {0};
    *view = (struct limits_view){.origin = LIMITS_FROM_LEGACY};
    if (size != LEGACY_SIZE) {
        REFUSE(&outcome, "has not %d bytes", (int)LEGACY_SIZE);
        return outcome;
    }
    int32_t cores = word_at(bytes, LEGACY_CORES), soft = word_at(bytes, LEGACY_SOFT);
    int32_t hard = word_at(bytes, LEGACY_HARD), enable = word_at(bytes, LEGACY_ENABLE);
    struct limits_device *device = &view->devices[0];
    memcpy(&device->memory_bytes, bytes + LEGACY_MEMORY, sizeof device->memory_bytes);
    /* Only a whole GPU is not limited: zeros, which a torn file may hold, must not pass for one. */
    bool whole = enable == 0 && cores >= LIMITS_NO_CORES, part = enable == 1 && cores >= 0 && device->memory_bytes != 0;
    if ((!whole && !part) || (hard & ~1) != 0 || soft < 0) {
        REFUSE(&outcome, "is malformed");
        return outcome;
    }
    device->cores = cores == 0 || cores > LIMITS_NO_CORES ? (uint32_t)LIMITS_NO_CORES : (uint32_t)cores;
    device->soft_cores = hard != 0 ? 0 : (uint32_t)(soft < LIMITS_NO_CORES ? soft : LIMITS_NO_CORES);
    view->device_count = (uint32_t)enable;
    return outcome;
}

static struct limits_outcome read_with(const char *path, struct limits_view *view,
                                       struct limits_outcome (*parse)(const char *, size_t, struct limits_view *))
{
    char bytes[LEGACY_SIZE + 1];    /* one more than either may have: too long is told from whole */
    struct limits_outcome outcome = {0};
    ssize_t length = read_all(path, bytes, sizeof bytes, &outcome);
    return length < 0 ? outcome : parse(bytes, (size_t)length, view);
}

struct limits_outcome limits_read_file(const char *path, struct limits_view *view)
{
    return read_with(path, view, limits_parse);
}

struct limits_outcome limits_read_legacy(const char *path, struct limits_view *view)
{
    return read_with(path, view, limits_parse_legacy);
}
