/* SPDX-License-Identifier: Apache-2.0
 *
 * The start of a container, and what its parent does until it ends.
 */
#ifndef HAMI_CONTAINER_H
#define HAMI_CONTAINER_H

#include <stddef.h>
#include <sys/types.h>

#include "launch.h"

/* What container runtimes report for a container that could not be started. */
#define CONTAINER_START_ERROR 128

/* From now on the signals that container_attend serves wait for it; before any other call. */
void container_block_signals(void);

/* Starts the container; returns its pid, or -1 with a sentence in `message`. launch->own_pids becomes
 * false where the machine gives a container no pids of its own. */
pid_t container_start(struct launch *launch, char *message, size_t size);

/* Serves signals until `program` has ended, and reaps whatever else ends; returns its exit code. */
int container_attend(pid_t program);

#endif
