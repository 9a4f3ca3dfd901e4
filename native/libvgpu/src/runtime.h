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

/* A kernel is about to be launched: tells monitors, at most once per RECORD_KERNEL_INTERVAL seconds. */
void vgpu_runtime_note_launch(void);

#endif
