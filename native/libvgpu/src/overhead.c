#include "overhead.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "lacking.h"
#include "real.h"
#include "runtime.h"
#include "slice.h"

/* Programs load modules in bursts; a look costs NVML some hundred microseconds. */
static const int64_t LOOK_EVERY_MS = 100;
/* As NVML says "not known". */
static const unsigned long long UNKNOWN_BYTES = ~0ULL;
/* More processes than one card ever has. */
enum { PROCESSES = 1024, DEVICES = 64 };

static _Atomic bool changed;
static _Atomic int64_t next_look_ms;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool list_processes(const struct vgpu_nvml *nvml, nvmlDevice_t device, nvmlProcessInfo_v2_t *found, unsigned int *count)
{
    nvmlReturn_t result = nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
    if (result == NVML_ERROR_NOT_FOUND) result = nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, count, found); /* older drivers */
    return result == NVML_SUCCESS;
}

/* Bytes that the driver holds for the process of that host pid; false: NVML does not show it. */
static bool bytes_of(const char *uuid, unsigned int pid, uint64_t *bytes)
{
    nvmlDevice_t device;
    unsigned int count = PROCESSES;
    bool known = false;
    nvmlProcessInfo_v2_t *found = calloc(PROCESSES, sizeof *found);
    const struct vgpu_nvml *nvml = found != NULL ? vgpu_nvml_begin() : NULL;
    if (nvml == NULL) return free(found), false;
    *bytes = 0; /* a process without a context is not listed: then the driver holds nothing for it */
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS && list_processes(nvml, device, found, &count)) {
        known = true;
        for (unsigned int i = 0; i < count && i < PROCESSES; i++) {
            if (found[i].pid != pid) continue;
            known = found[i].usedGpuMemory != UNKNOWN_BYTES;
            *bytes = found[i].usedGpuMemory;
        }
    }
    nvml->nvmlShutdown();
    free(found);
    return known;
}

static void settle(int index)
{
    const char *uuid = vgpu_runtime_device_uuid(index);
    const unsigned int pid = vgpu_runtime_host_pid();
    uint64_t bytes;
    if (pid != 0 && uuid != NULL && bytes_of(uuid, pid, &bytes)) vgpu_slice_set_overhead(index, bytes);
}

void vgpu_overhead_settle(CUdevice device)
{
    if (!vgpu_runtime_start()) return;
    const int index = vgpu_runtime_cuda_device(device);
    if (index >= 0) settle(index);
}

void vgpu_overhead_settle_current(void)
{
    CUdevice device;
    if (vgpu_cuda()->cuCtxGetDevice(&device) == CUDA_SUCCESS) vgpu_overhead_settle(device);
}

void vgpu_overhead_settle_all(void)
{
    int count = 0;
    if (vgpu_cuda()->cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
    for (CUdevice device = 0; device < count && device < DEVICES; device++) vgpu_overhead_settle(device);
}

void vgpu_overhead_changed(void)
{
    atomic_store(&changed, true);
    vgpu_overhead_look_if_changed();
}

void vgpu_overhead_look_if_changed(void)
{
    if (!atomic_load_explicit(&changed, memory_order_relaxed) || now_ms() < atomic_load(&next_look_ms)) return;
    atomic_store(&next_look_ms, now_ms() + LOOK_EVERY_MS);
    if (atomic_exchange(&changed, false)) vgpu_overhead_settle_current();
}
