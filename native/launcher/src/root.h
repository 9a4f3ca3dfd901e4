/* SPDX-License-Identifier: Apache-2.0
 *
 * A container's file system made of the machine's own: the host's top-level directories, the
 * container's mounts over them, and shadow directories (a tmpfs with a bind of every entry) where
 * a mount target does not exist on the host and must not be created there.
 */
#ifndef HAMI_ROOT_H
#define HAMI_ROOT_H

#include <errno.h>
#include <stddef.h>
#include <sys/types.h>

#include "launch.h"

/* Moves the calling process into a mount namespace of its own; if it lacks the right to, into a
 * user namespace first, in which its user and group ids stay as they are.
 * Returns 0; or -errno with a sentence in `message`. Single-threaded callers only. */
int root_unshare(char *message, size_t size);

/* In a user namespace just made: its one user and group are these, which the caller had before.
 * Returns 0 or -errno. */
int root_map_ids(uid_t uid, gid_t gid);

/* What root_enter() answers when the kernel refuses a /proc of the container's own, as it does where
 * parts of the machine's are hidden. */
#define ROOT_NO_PROC (-ENOTSUP)

/* Builds the root on launch->rootfs and pivots into it; after root_unshare().
 * Returns 0; or -errno with a sentence in `message`. */
int root_enter(const struct launch *launch, char *message, size_t size);

#endif
