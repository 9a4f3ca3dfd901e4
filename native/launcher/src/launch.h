/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch file: what one start of one container needs, written by the simulated kubelet
 * (kubelocal/kubelet/containers/launch_files.py) as NUL-terminated fields: a tag, then its values.
 *
 *   cwd    DIR              working directory inside the container
 *   log    FILE             receives stdout and stderr, appended
 *   rootfs DIR              empty directory to build the root on; without it: no mount namespace
 *   cgroup DIR              the container's processes belong to it; without it: to ours
 *   env    NAME=VALUE       the whole environment, in order
 *   arg    ARGUMENT         the command line, in order
 *   mount  ro|rw SRC DST    in the order in which they are made
 */
#ifndef HAMI_LAUNCH_H
#define HAMI_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

struct launch_mount {
    bool read_only;
    const char *source;
    const char *target;
};

struct launch {
    const char *cwd;
    const char *log;
    const char *rootfs;
    const char *cgroup;
    char **env;  /* NULL-terminated */
    char **argv; /* NULL-terminated, at least one argument */
    struct launch_mount *mounts;
    size_t mount_count;
    bool own_pids; /* not read from the file: the caller is process 1 of a pid namespace */
};

/* Reads the file at `path` into `launch`, whose pointers stay valid until exit.
 * Returns 0, or -errno; -EPROTO: the file is not of the form above. */
int launch_read(const char *path, struct launch *launch);

#endif
