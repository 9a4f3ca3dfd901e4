/* SPDX-License-Identifier: Apache-2.0
 * Reader of the launch file; the form is in launch.h. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads a whole file, with one NUL more behind it. Returns 0 or -errno. */
static int read_all(const char *path, char **text, size_t *length)
{
    struct stat status;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return -errno;
    if (fstat(fd, &status) < 0 || !(*text = calloc(1, (size_t)status.st_size + 1))) {
        got = -errno;
        goto done;
    }
    for (*length = 0; *length < (size_t)status.st_size; *length += (size_t)got) {
        got = read(fd, *text + *length, (size_t)status.st_size - *length);
        if (got <= 0) {
            got = got < 0 ? -errno : -EPROTO;
            goto done;
        }
    }
    got = 0;
done:
    close(fd);
    return (int)got;
}

struct fields {
    char *next, *end;
};

/* The next field, or NULL at the end of the file. */
static char *take(struct fields *fields)
{
    char *field = fields->next;

    if (field >= fields->end) return NULL;
    fields->next = field + strlen(field) + 1;
    return field;
}

static int parse_mount(struct fields *fields, struct launch_mount *mount)
{
    const char *mode = take(fields);

    mount->source = take(fields);
    mount->target = take(fields);
    if (!mode || !mount->source || !mount->target || mount->target[0] != '/') return -EPROTO;
    mount->read_only = strcmp(mode, "ro") == 0;
    return 0;
}

static int parse(struct fields *fields, struct launch *launch)
{
    size_t envs = 0, args = 0;

    for (char *tag = take(fields); tag; tag = take(fields)) {
        char *value;

        if (strcmp(tag, "mount") == 0) {
            if (parse_mount(fields, &launch->mounts[launch->mount_count]) < 0) return -EPROTO;
            launch->mount_count++;
            continue;
        }
        if (!(value = take(fields))) return -EPROTO;
        if (strcmp(tag, "env") == 0)
            launch->env[envs++] = value;
        else if (strcmp(tag, "arg") == 0)
            launch->argv[args++] = value;
        else if (strcmp(tag, "cwd") == 0)
            launch->cwd = value;
        else if (strcmp(tag, "log") == 0)
            launch->log = value;
        else if (strcmp(tag, "rootfs") == 0)
            launch->rootfs = value;
        else if (strcmp(tag, "cgroup") == 0)
            launch->cgroup = value;
        else
            return -EPROTO;
    }
    return args > 0 && launch->cwd && launch->log ? 0 : -EPROTO;
}

int launch_read(const char *path, struct launch *launch)
{
    char *text = NULL;
    size_t length = 0, count = 1;
    int error = read_all(path, &text, &length);

    if (error < 0) return error;
    for (size_t i = 0; i < length; i++) count += text[i] == '\0';
    memset(launch, 0, sizeof(*launch));
    /* Every record has at least two fields, so these are large enough. */
    launch->env = calloc(count, sizeof(*launch->env));
    launch->argv = calloc(count, sizeof(*launch->argv));
    launch->mounts = calloc(count, sizeof(*launch->mounts));
    if (!launch->env || !launch->argv || !launch->mounts) return -ENOMEM;
    return parse(&(struct fields){.next = text, .end = text + length}, launch);
}
