/* Where the configuration comes from: the limits file while it is there, else the environment, unless a limits file is
 * required (installed.h); and when to look again. */
#ifndef VGPU_CONFIG_SOURCE_H
#define VGPU_CONFIG_SOURCE_H

#include <sys/stat.h>

#include "config/config.h"

/* Which file was read last: it is replaced by rename, so a new inode or time means new limits. */
struct vgpu_config_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
};

/* Loads the configuration and the stamp of the file it came from. Never fails: a file that is there but cannot be used allows nothing. */
void vgpu_config_load(const char *path, struct vgpu_config *config, struct vgpu_config_stamp *stamp);

/* Whether the file at `path` is another one than at `stamp`. One stat. A file that has vanished is no change: the limits it gave stay
 * (else removing it would lift them). */
bool vgpu_config_changed(const char *path, const struct vgpu_config_stamp *stamp);

#endif
