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

/* The number of this process's pid namespace; 0 when it cannot be read. Asks /proc each time. */
uint32_t vgpu_process_namespace(void);

/* This process's pid on the host, or 0 when that namespace is not the host's and it therefore cannot know. */
pid_t vgpu_process_host_pid(uint32_t pid_namespace);

/* The pids by which NVML may know this process: those of every pid namespace that /proc shows it in, and the one that
 * the node wrote beside the limits ("<pid in the container> <pid on the host> <start time>" per line of VGPU_PIDS_PATH,
 * for drivers that show containers the host's pids). The tenant can write neither. Returns how many, at most `room`. */
enum { VGPU_OWN_PIDS = 8 };
int vgpu_process_own_pids(unsigned int *pids, int room);

#define VGPU_PIDS_PATH "/etc/hami/pids"

#endif
