/* Is a process that once took a slot still the same, living one? */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Start time of a process in clock ticks since boot, from /proc/<pid>/stat; 0 when it cannot be read. */
uint64_t vgpu_process_start_time(pid_t pid);

/* Whether that process lives. `start_time` 0 means unknown: then any living process of that pid counts. A zombie that still has
 * threads (its main thread alone has ended) lives. When /proc cannot be read at all, kill(pid, 0) decides. */
bool vgpu_process_alive(pid_t pid, uint64_t start_time);

/* This process's pid on the host, or 0 when it runs in a pid namespace of its own and therefore cannot know. */
pid_t vgpu_process_host_pid(void);

#endif
