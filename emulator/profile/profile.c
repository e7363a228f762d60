/* The file and the top level of a profile; see profile.h. The parts are read by the files that parts.h names. */
#include "profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../shared/state.h"
#include "parts.h"

enum { FORMAT = 1 };

static const struct field top_level[] = {
    {"format", FIELD_WHOLE, true, MEMBER(struct parts, format), .low = FORMAT, .high = FORMAT},
    {"name", FIELD_TEXT, true, MEMBER(struct parts, name)},
    {"driver", FIELD_TEXT, true, MEMBER(struct parts, driver)},
    {"cuda", FIELD_VERSION, true, MEMBER(struct parts, cuda)},
    {"models", FIELD_NODE, true, MEMBER(struct parts, models), .kind = JSON_OBJECT},
    {"gpus", FIELD_NODE, true, MEMBER(struct parts, gpus), .kind = JSON_ARRAY},
    {"cpus", FIELD_NODE, false, MEMBER(struct parts, cpus), .kind = JSON_ARRAY},
    {"topology", FIELD_NODE, false, MEMBER(struct parts, topology), .kind = JSON_OBJECT},
    {"nvlink", FIELD_NODE, false, MEMBER(struct parts, nvlink), .kind = JSON_ARRAY},
    {"processes", FIELD_NODE, false, MEMBER(struct parts, processes), .kind = JSON_ARRAY},
    {NULL},
};

/* The whole file, at most one byte more than the reader takes, so that too much is seen to be too much. */
static char *read_file(const char *path, size_t *size, struct fault *fault)
{
    enum { MOST = JSON_MAX_SIZE + 1 };
    struct stat found;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        fault_set(fault, "%.200s: cannot be opened: %s", path, strerror(errno));
        fault->absent = errno == ENOENT || errno == ENOTDIR;
        return NULL;
    }
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
        fault_set(fault, "%.200s: not a file", path);
    } else if ((text = malloc(MOST)) == NULL) {
        fault_set(fault, "%.200s: out of memory", path);
    } else {
        ssize_t got = 1;
        for (*size = 0; *size < MOST && got > 0; *size += got > 0 ? (size_t)got : 0)
            got = read(fd, text + *size, MOST - *size);
        if (got < 0) {
            fault_set(fault, "%.200s: cannot be read: %s", path, strerror(errno));
            free(text);
            text = NULL;
        }
    }
    close(fd);
    return text;
}

bool profile_hash(const char *path, uint64_t *hash, struct fault *fault)
{
    size_t size;
    char *text = read_file(path, &size, fault);
    if (text == NULL)
        return false;
    *hash = hash_bytes(HASH_START, text, size);
    free(text);
    return true;
}

static bool read_parts(const struct source *source, const struct json *root, struct machine_image *image)
{
    struct parts parts = {0};
    struct shared_state *state = &image->state;
    if (!node_is(source, root, JSON_OBJECT, "a profile") || !fields_read(source, top_level, NULL, root, &parts) ||
        !fields_require(source, top_level, root, NULL))
        return false;
    strcpy(state->name, parts.name);
    strcpy(state->driver, parts.driver);
    state->cuda = parts.cuda[0] * 1000 + parts.cuda[1] * 10;
    return read_gpus(source, &parts, image) && read_cpus(source, &parts, image) && read_topology(source, &parts, image) &&
           read_nvlink(source, &parts, image) && read_processes(source, &parts, image);
}

static void seal(struct shared_state *state, uint64_t hash)
{
    state->layout_version = LAYOUT_VERSION;
    state->header_size = sizeof *state;
    state->total_size = sizeof(struct machine_image);
    state->gpu_offset = offsetof(struct machine_image, gpus);
    state->gpu_stride = sizeof(struct shared_gpu);
    state->extension_offset = offsetof(struct machine_image, cuda);
    state->extension_size = sizeof(struct cuda_section);
    state->profile_hash = hash;
    state->created_us = clock_us();
    atomic_store(&state->driver_epoch, 1);
    state->magic = LAYOUT_MAGIC;
}

bool profile_load(const char *path, struct machine_image *image, struct fault *fault)
{
    struct json_document document;
    struct fault syntax = {{0}};
    struct source source = {path, fault};
    size_t size;
    char *text = read_file(path, &size, fault);
    if (text == NULL)
        return false;
    bool done = json_parse(&document, text, size, &syntax);
    if (done) {
        done = read_parts(&source, document.root, image);
        json_free(&document);
    } else {
        make_plain(syntax.text);
        fault_set(fault, "%.200s:%s", path, syntax.text);
    }
    if (done)
        seal(&image->state, hash_bytes(HASH_START, text, size));
    free(text);
    return done;
}
