/* NVML shows the slice: total is the limit, used is what this container holds. */
#include "config/quota.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "pools/leaving.h"
#include "pools/pool.h"
#include "accounting/slice.h"

struct view {
    unsigned long long total, used, free;
};

/* false: the device is not limited and NVML's own numbers stand. */
static int view_of(nvmlDevice_t device, unsigned long long real_total, struct view *view)
{
    if (!vgpu_state_start()) return 0;
    const int index = vgpu_state_nvml_device(device);
    const uint64_t limit = vgpu_slice_limit(index);
    if (limit == VGPU_UNLIMITED) return 0;
    vgpu_leaving_settle();
    vgpu_pool_look_all(false);
    view->total = limit < real_total || vgpu_slice_oversubscribes() ? limit : real_total;
    view->used = vgpu_slice_used(index);
    view->free = vgpu_quota_subtract(view->total, view->used);
    return 1;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const struct vgpu_nvml *nvml = vgpu_nvml();
    if (nvml == NULL) return NVML_ERROR_UNINITIALIZED;
    const nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo(device, memory);
    struct view view;
    if (result != NVML_SUCCESS || memory == NULL || !view_of(device, memory->total, &view)) return result;
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    const struct vgpu_nvml *nvml = vgpu_nvml();
    if (nvml == NULL) return NVML_ERROR_UNINITIALIZED;
    const nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo_v2(device, memory);
    struct view view;
    if (result != NVML_SUCCESS || memory == NULL || !view_of(device, memory->total, &view)) return result;
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    memory->reserved = 0; /* the driver's own share is not the tenant's */
    return NVML_SUCCESS;
}
