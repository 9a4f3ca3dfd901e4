/* The visible devices, by UUID: one index for CUDA, NVML, the limits and the region, whatever CUDA_VISIBLE_DEVICES reorders.
 *
 * Where a limits file lists the devices, its order is the index, and NVML, whose start costs milliseconds, is left alone. Else the index
 * is NVML's in this container, as HAMi's numbered variables count; without NVML it is the order in which CUDA shows the devices.
 * The table survives fork.
 */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "config/config.h"
#include "cuda_abi.h"
#include "nvml_abi.h"
#include "vgpu_region.h"

enum {
    VGPU_DEVICE_UNKNOWN = -1, /* the driver does not answer which device: let it answer the call itself */
    VGPU_DEVICE_UNPLACED = -2 /* a sixty-fifth device: the region has no place for it */
};

struct vgpu_devices {
    _Atomic int count;
    char uuid[VGPU_MAX_DEVICES][VGPU_UUID_BYTES];
    _Atomic int8_t of_cuda[VGPU_MAX_DEVICES]; /* CUdevice -> index + 1; 0: not asked yet */
};

/* Adds what the limits file lists and the table lacks. The caller holds the process's lock. */
void vgpu_devices_list(struct vgpu_devices *devices, const struct vgpu_config *config);

/* A table filled from NVML if it can be had, else from CUDA; the caller frees it. NULL: no memory. With no lock held: it may load NVML. */
struct vgpu_devices *vgpu_devices_discover(void);

/* Makes an empty table the one that was discovered. The caller holds the process's lock. */
void vgpu_devices_take(struct vgpu_devices *devices, const struct vgpu_devices *found);

/* Index of a CUDA device; asks the driver the first time. */
int vgpu_devices_of_cuda(struct vgpu_devices *devices, CUdevice device);

/* Index of an NVML device. */
int vgpu_devices_of_nvml(struct vgpu_devices *devices, nvmlDevice_t device);

#endif
