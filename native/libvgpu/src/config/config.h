/* What this container may use: from the limits file the node wrote, else from the environment.
 *
 * The file is /etc/hami/limits, a fixed path that no variable can redirect:
 *
 *   hami-limits 1
 *   policy default|force|disable
 *   oversubscribe 0|1
 *   utilization_switch 0|1
 *   priority_block 0|1 [<Unix time in seconds>]
 *   device <GPU-uuid> memory_bytes <n> core_percent <n>
 *   region <path>
 *
 * utilization_switch 0 lifts the core limits while the policy is default, as HAMi's monitor does for a container that is alone on its
 * cards; priority_block 1 holds launches back while a container of higher priority works. Both may be absent (1 and 0).
 * The time behind priority_block is when it ends; the node moves it on while the block holds. Files of older nodes have none. With or
 * without it a file blocks for VGPU_BLOCK_MS at most after it was read.
 * region: where the container's processes keep their accounts together, as the container sees it; CUDA_DEVICE_MEMORY_SHARED_CACHE counts
 * only where it is absent (files of older nodes): a tenant that chose the place for each process would have a slice for each.
 * memory_bytes 0: no memory limit; core_percent 0 or >= 100: no core limit. A visible device that the file does not list, or lists
 * without both, may not be used at all. Unknown lines and keys are ignored with a warning. A file that cannot be read, or has a line that
 * cannot, allows nothing: a broken hand-over must not turn into an unlimited one. Without a file, HAMi's variables count:
 * CUDA_DEVICE_MEMORY_LIMIT[_<i>], CUDA_DEVICE_SM_LIMIT[_<i>], GPU_CORE_UTILIZATION_POLICY, CUDA_OVERSUBSCRIBE. One that cannot be read
 * allows nothing of the cards that it is about.
 */
#ifndef VGPU_CONFIG_H
#define VGPU_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu_region.h"

#define VGPU_LIMITS_PATH "/etc/hami/limits"

enum { VGPU_REGION_PATH_BYTES = 256 };

enum vgpu_config_source { VGPU_CONFIG_ENVIRONMENT, VGPU_CONFIG_FILE };
enum vgpu_core_policy { VGPU_CORE_POLICY_DEFAULT, VGPU_CORE_POLICY_FORCE, VGPU_CORE_POLICY_DISABLE };

struct vgpu_limit {
    uint64_t memory_bytes; /* VGPU_UNLIMITED: none; 0: the device may not be used, and core_percent is 1 */
    uint32_t core_percent; /* 1..100; 100: no limit */
};

struct vgpu_config {
    enum vgpu_config_source source;
    enum vgpu_core_policy core_policy;
    bool oversubscribe;
    bool utilization_off; /* policy default: nothing is limited at present */
    bool priority_block;
    uint64_t priority_block_until_s; /* Unix time; 0: not given */
    char region_path[VGPU_REGION_PATH_BYTES]; /* source FILE; empty: not given */
    size_t device_count; /* source FILE: entries of `uuid` and `listed` */
    char uuid[VGPU_MAX_DEVICES][VGPU_UUID_BYTES];
    struct vgpu_limit listed[VGPU_MAX_DEVICES];
    struct vgpu_limit indexed[VGPU_MAX_DEVICES]; /* source ENVIRONMENT: by index in container order */
};

/* Parses an amount of bytes: decimal, also with a fraction, or 0x hexadecimal, then optionally one of k m g t, each also as kb/kib,
 * mb/mib/mi ...; case and blanks around do not matter and all are powers of 1024. 0, or -EINVAL (garbage, or a part of a byte), or -ERANGE
 * (more than 64 bits); *bytes is set only on 0. */
int vgpu_config_parse_bytes(const char *text, uint64_t *bytes);

/* Reads the limits file's text. 0, or -EINVAL when the first line is not that of version 1, or a setting cannot be read (then *config
 * allows nothing). */
int vgpu_config_parse_file(const char *text, size_t length, struct vgpu_config *config);

/* Reads the variables through `lookup` (getenv in production). */
void vgpu_config_parse_environment(const char *(*lookup)(const char *name), struct vgpu_config *config);

/* The limit of one visible device. `index` is its place in container order; index < 0 or >= 64: no place, so nothing is allowed as
 * soon as anything is limited. */
struct vgpu_limit vgpu_config_limit(const struct vgpu_config *config, const char *uuid, int index);

/* For how long a file that was just read holds launches back; 0: not at all. Never longer than VGPU_BLOCK_MS: a node agent that has ended
 * must not stop a container for good. */
enum { VGPU_BLOCK_MS = 30000 };
int64_t vgpu_config_blocks_ms(const struct vgpu_config *config, int64_t wall_ms);

/* Whether anything at all is limited; if not, and no region path is given, there is nothing to account for. */
bool vgpu_config_limits_anything(const struct vgpu_config *config);

#endif
