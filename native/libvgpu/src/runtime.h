/* The state of one process: its configuration, devices, region and slot. Hooks talk to this module and to the ledger, nothing else.
 *
 * It is started by the first call that concerns it (cuInit, an NVML memory query), never by being loaded: a process that uses no GPU
 * pays nothing. After fork the child starts afresh by itself: the state lives in pages that the kernel empties in a child.
 */
#ifndef VGPU_RUNTIME_H
#define VGPU_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "vgpu_region.h"

/* Starts the process's state if it is not. Needs an initialised driver or NVML. false: without memory, or called from inside itself. */
bool vgpu_runtime_start(void);

/* Takes the process's slot in the region now rather than at its first allocation, so that monitors see the process. */
void vgpu_runtime_register(void);

/* Index of a device (devices.h); negative: VGPU_DEVICE_UNKNOWN or VGPU_DEVICE_UNPLACED. */
int vgpu_runtime_cuda_device(CUdevice device);
int vgpu_runtime_nvml_device(nvmlDevice_t device);

/* Bytes that the container may hold on a device; VGPU_UNLIMITED, or 0 when it may not be used. */
uint64_t vgpu_runtime_limit(int index);

/* Bytes that the container holds on a device. Sweeps dead processes now and then. */
uint64_t vgpu_runtime_used(int index);

/* Reserves before the driver is asked. 0, or -ENOMEM with nothing reserved. `index` may be negative: nothing is counted then. */
int vgpu_runtime_reserve(int index, uint64_t bytes);

/* Charges memory that is there already, whatever the limit. */
void vgpu_runtime_charge(int index, uint64_t bytes);

void vgpu_runtime_release(int index, uint64_t bytes);

/* Whether the container was promised more than the card may have: then the host's memory stands in for what is missing. */
bool vgpu_runtime_oversubscribes(void);

/* The pid by which NVML knows this process; 0: not known. */
unsigned int vgpu_runtime_host_pid(void);

/* The driver was seen to hold so many bytes of the device for this process; what no block explains is its own (contexts, modules), and
 * charged as such. Returns these bytes. */
uint64_t vgpu_runtime_set_overhead(int index, uint64_t seen_bytes);

/* What a launch has to do with core limits. */
enum vgpu_core_concern {
    VGPU_CORES_FREE,    /* nothing */
    VGPU_CORES_LIMITED, /* some device has a limit */
    VGPU_CORES_BLOCKED  /* a container of higher priority goes first */
};

/* A kernel is about to be launched: tells monitors, at most once per RECORD_KERNEL_INTERVAL seconds; looks for new limits. A clock reading
 * and two loads while there is nothing to do. */
enum vgpu_core_concern vgpu_runtime_core_concern(void);

/* The terms under which launches are made on a device, as of now. */
struct vgpu_core_terms {
    uint32_t percent; /* 1..100; 100: no limit */
    bool blocked;
    struct vgpu_region *region;
    struct vgpu_region_slot *slot; /* NULL: none could be had */
    int process_count;
};

/* Reads limits anew if they have changed. false: nothing is known, so nothing is limited. */
bool vgpu_runtime_core_terms(int index, struct vgpu_core_terms *terms);

/* The device of the thread's current context. */
int vgpu_runtime_current_device(void);

/* UUID of a device of that index. */
const char *vgpu_runtime_device_uuid(int index);

#endif
