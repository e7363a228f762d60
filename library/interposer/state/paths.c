/*
 * Where the container's files are: /etc/vcuda. The environment may name another base (VCUDA_DIR, for tests and for runs without a container) only
 * where that does not exist, so that a container cannot be talked out of its limits.
 *
 * In: the file system, once per process. Out: paths. A base that does not exist means: not our container.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

enum { LONGEST_BASE = VCUDA_PATH - 64 };

static const char standard[] = "/etc/vcuda";
static char base[VCUDA_PATH];       /* written while attaching, before vcuda_attached is set */

/* Anything but "there is no such thing" counts as there: what cannot be looked at must not open the limits. */
static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

void paths_find(void)
{
    const char *named = getenv("VCUDA_DIR");
    const char *chosen = standard;
    if (!exists(standard) && named != NULL && named[0] == '/' && strlen(named) < LONGEST_BASE)
        chosen = named;
    strcpy(base, exists(chosen) ? chosen : "");
}

const char *paths_base(void)
{
    return base;
}

bool vcuda_path(char path[static VCUDA_PATH], const char *format, ...)
{
    if (base[0] == '\0')
        return false;
    int length = snprintf(path, VCUDA_PATH, "%s/", base);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(path + length, (size_t)(VCUDA_PATH - length), format, arguments);
    va_end(arguments);
    return more >= 0 && length + more < VCUDA_PATH;
}

bool vcuda_activity_row(char path[static VCUDA_PATH], const char *uuid)
{
    return vcuda_path(path, "state/%s.activity", uuid);
}

bool vcuda_activity_directory(char path[static VCUDA_PATH], const char *uuid)
{
    return vcuda_path(path, "gpus/%s", uuid);
}
