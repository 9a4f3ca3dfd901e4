/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories of a new root that are the container's own: a tmpfs with a bind of every entry of the
 * machine's directory, made where a mount target is missing and must not be created on the host.
 */
#ifndef HAMI_SHADOW_H
#define HAMI_SHADOW_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* A container needs some five; the limit only bounds the table. */
#define MAX_SHADOWS 64

struct root {
    const char *path;                /* where the new root lies, seen from the old one */
    char shadows[MAX_SHADOWS][PATH_MAX]; /* directories of the new root that are our own */
    size_t shadow_count;
    char **mounted;                  /* targets of the mounts made so far */
    size_t mounted_count;
    bool own_pids;
    char *message;
    size_t message_size;
};

/* Writes a sentence with the reason of `error` (-errno) into root->message; returns `error`. */
int root_fail(struct root *root, int error, const char *format, ...);

/* dir + "/" + name into out[PATH_MAX]; returns 0 or -ENAMETOOLONG. */
int path_join(char *out, const char *dir, const char *name);

/* Mirrors every entry of `from` into the directory `to`. An entry that has vanished, or that
 * this user may not reach, is left out: the container could not have used it either. */
int shadow_mirror(struct root *root, const char *from, const char *to);

/* Walks `target` (PATH_MAX bytes, changed to its resolved form) and creates what is missing; the
 * last component becomes a directory or an empty file. */
int shadow_target(struct root *root, char *target, bool as_directory);

#endif
