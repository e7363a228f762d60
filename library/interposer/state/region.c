/*
 * The container's region (abi/region.h), mapped at first use and kept for the life of the process; children inherit the mapping.
 *
 * In: state/region in the base directory. Out: the mapping. A file that is missing, short, of another version or of another grant is told in one
 * line and replaced by a private, anonymous region: this process is then held to its limit of time alone, and gets no device memory, or each process
 * would get the whole limit. One that is only not to be had now, because the process is out of descriptors or address space, is tried again before each
 * refusal. With the limits of gpu-manager's agent, which makes no region, it is held to both alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static struct region *_Atomic mapped;
static struct region *_Atomic shared;   /* `mapped` where it is the file */
static _Atomic bool passing;            /* why the file is not mapped may be over */
static _Atomic uint64_t shared_device, shared_inode;

static bool passes(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN || error == EINTR || error == ENOBUFS;
}

static struct region *map(int file, int flags)
{
    struct region *region = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, flags, file, 0);
    return region == MAP_FAILED ? NULL : region;
}

static const char *wrong_with(const struct region *region)
{
    const char *grant = vcuda_limits()->grant;
    if (region->magic != REGION_MAGIC || region->size != sizeof(struct region))
        return "is no region file";
    if (region->version != REGION_VERSION)
        return "is of another version";
    if (grant[0] != '\0' && memcmp(region->grant, grant, sizeof region->grant) != 0)
        return "belongs to another grant";
    return NULL;
}

/* The file's mapping, or NULL with the reason. */
static struct region *map_file(int file, const char **wrong)
{
    struct stat status;
    if (fstat(file, &status) != 0 || (size_t)status.st_size < sizeof(struct region)) {
        *wrong = "is short";
        return NULL;
    }
    struct region *region = map(file, MAP_SHARED);
    if (region == NULL)
        atomic_store(&passing, passes(errno));
    *wrong = region == NULL ? "cannot be mapped" : wrong_with(region);
    if (region != NULL && *wrong != NULL) {
        munmap(region, sizeof *region);
        region = NULL;
    }
    atomic_store(&shared_device, status.st_dev);
    atomic_store(&shared_inode, status.st_ino);
    return region;
}

/* gpu-manager's agent makes none. */
static bool needs_shared(void)
{
    return vcuda_limits()->origin != LIMITS_FROM_LEGACY;
}

static struct region *open_shared(void)
{
    char path[VCUDA_PATH], text[64];
    const char *wrong = NULL;
    struct region *region = NULL;
    if (!vcuda_path(path, "state/region"))
        return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    atomic_store(&passing, file < 0 && passes(errno));
    if (file < 0)
        wrong = strerror_r(errno, text, sizeof text);
    else
        region = map_file(file, &wrong);
    if (file >= 0)
        close(file);
    if (region == NULL && needs_shared())
        vcuda_warn(TOPIC_REGION, "%s: %s: this process gets no device memory%s", path, wrong,
                   atomic_load(&passing) ? " until it can be opened" : "; start the container again");
    return region;
}

/* Without the magic number it stands for a shared one that cannot be used. */
static struct region *open_private(void)
{
    struct region *region = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
    if (region == NULL)
        return NULL;
    region->magic = needs_shared() ? 0 : REGION_MAGIC;
    region->version = REGION_VERSION;
    region->size = sizeof *region;
    return region;
}

static bool is_wanted(void)
{
    enum limits_origin origin = vcuda_limits()->origin;
    return origin == LIMITS_FROM_FILE || origin == LIMITS_FROM_LEGACY;
}

/* A private region is the parent's alone: the child makes its own. */
static void forget(void)
{
    if (atomic_load(&shared) == NULL)
        atomic_store(&mapped, NULL);
}

/* Two threads may both map; one of the mappings stays, the other goes. Once mapped it stays, whatever becomes of the limits. */
static struct region *map_now(void)
{
    vcuda_on_fork(forget);
    struct region *fresh = open_shared(), *file = fresh, *none = NULL;
    if (fresh == NULL)
        fresh = open_private();
    if (fresh == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&mapped, &none, fresh)) {
        if (file != NULL)
            atomic_store(&shared, file);
        return fresh;
    }
    munmap(fresh, sizeof *fresh);
    return none;
}

struct region *vcuda_region(void)
{
    struct region *region = atomic_load_explicit(&mapped, memory_order_acquire);
    int cancel_state;
    if (region != NULL || !is_wanted())
        return region;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    region = map_now();
    pthread_setcancelstate(cancel_state, NULL);
    return region;
}

bool region_open_again(void)
{
    struct region *held = atomic_load(&mapped), *file;
    if (held == NULL || atomic_load(&shared) != NULL || !needs_shared() || !atomic_load(&passing) || (file = open_shared()) == NULL)
        return false;
    atomic_store(&shared, file);
    atomic_store_explicit(&mapped, file, memory_order_release);
    return true;        /* the private one stays: somebody may be reading it */
}

/* A container can take the magic number out of the file that it has mapped: that changes nothing. */
bool region_is_usable(void)
{
    const struct region *region = vcuda_region();
    return region != NULL && (region->magic == REGION_MAGIC || region == atomic_load(&shared));
}

/* Another file may have replaced it: locks on that file say nothing about this one. */
int region_open(void)
{
    char path[VCUDA_PATH];
    struct stat status;
    int file = vcuda_region_shared() && vcuda_path(path, "state/region") ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0 && fstat(file, &status) == 0 && status.st_dev == atomic_load(&shared_device) && status.st_ino == atomic_load(&shared_inode))
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

bool vcuda_region_shared(void)
{
    return vcuda_region() != NULL && atomic_load(&shared) != NULL;
}
