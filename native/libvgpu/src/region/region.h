/* The region of a container: opened, made where there is none, and filled with its devices and limits. */
#ifndef VGPU_REGION_STATE_H
#define VGPU_REGION_STATE_H

#include <stdbool.h>

#include "config/config.h"
#include "region/region_file.h"
#include "vgpu_region.h"

/* What a new region is filled with. */
struct vgpu_region_values {
    int device_count;
    char uuid[VGPU_MAX_DEVICES][VGPU_UUID_BYTES];
    struct vgpu_limit limit[VGPU_MAX_DEVICES];
    int priority;
    bool limits_are_authoritative; /* from the limits file: written even where other processes live already */
    bool place_is_given;           /* the path is the node's: a damaged region that lies there is made again */
};

/* Maps the region at `path`, creating and initialising it if need be, and publishes the values. When the file cannot be used (NULL
 * path, read-only directory, full disk, foreign version, anything but a regular file that is empty or a region) the region is private
 * memory: limits then hold for this process alone. Fails, with -errno, only when there is no memory. The caller holds the process's lock.
 */
int vgpu_region_open(struct vgpu_region_file *opened, const char *path, struct vgpu_region_values *values);

/* Unmaps and closes. What the process holds in it stays charged. */
void vgpu_region_close(struct vgpu_region_file *opened);

/* Writes the names of the devices into the region: all places, zero padded. */
void vgpu_region_publish_devices(struct vgpu_region_file *opened, char (*uuid)[VGPU_UUID_BYTES], int count);

/* Writes limits into the region, where monitors read them. A device that may not be used shows a limit of 1 byte, as 0 means none. */
void vgpu_region_publish_limits(struct vgpu_region *region, const struct vgpu_limit *limit, int count);

#endif
