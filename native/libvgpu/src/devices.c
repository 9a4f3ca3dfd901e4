#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "log.h"
#include "real.h"

static int index_of(const struct vgpu_devices *devices, const char *uuid)
{
    const int count = atomic_load(&devices->count);
    for (int i = 0; i < count; i++)
        if (strcmp(devices->uuid[i], uuid) == 0) return i;
    return VGPU_DEVICE_UNPLACED;
}

static void add(struct vgpu_devices *devices, const char *uuid)
{
    const int count = atomic_load(&devices->count);
    if (count == VGPU_MAX_DEVICES) {
        vgpu_log(VGPU_LOG_WARN, "device %s is beyond the %d that the shared region holds", uuid, VGPU_MAX_DEVICES);
        return;
    }
    snprintf(devices->uuid[count], VGPU_UUID_BYTES, "%s", uuid);
    atomic_store(&devices->count, count + 1);
}

static int discover_by_nvml(struct vgpu_devices *devices)
{
    const struct vgpu_nvml *nvml = vgpu_nvml_loaded();
    if (nvml == NULL || nvml->nvmlInit_v2() != NVML_SUCCESS) return -1;
    unsigned int count = 0;
    nvmlReturn_t result = nvml->nvmlDeviceGetCount_v2(&count);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++) {
        nvmlDevice_t device;
        char uuid[VGPU_UUID_BYTES];
        /* A card that has fallen off the bus answers neither; the others keep their order. */
        if (nvml->nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS &&
            nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid) == NVML_SUCCESS)
            add(devices, uuid);
    }
    nvml->nvmlShutdown(); /* counted: the host's own initialisation is untouched */
    return result == NVML_SUCCESS ? 0 : -1;
}

static int cuda_uuid(CUdevice device, char text[VGPU_UUID_BYTES])
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUuuid uuid;
    if (cuda == NULL || (cuda->cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS && cuda->cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS))
        return -1;
    const unsigned char *b = uuid.bytes;
    snprintf(text, VGPU_UUID_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
             b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}

static void discover_by_cuda(struct vgpu_devices *devices)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    int count = 0;
    if (cuda == NULL || cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
    for (int i = 0; i < count; i++) {
        CUdevice device;
        char uuid[VGPU_UUID_BYTES];
        if (cuda->cuDeviceGet(&device, i) == CUDA_SUCCESS && cuda_uuid(device, uuid) == 0) add(devices, uuid);
    }
}

void vgpu_devices_discover(struct vgpu_devices *devices)
{
    if (discover_by_nvml(devices) == 0) return;
    vgpu_log(VGPU_LOG_WARN, "no NVML: the order of the devices is CUDA's");
    discover_by_cuda(devices);
}

int vgpu_devices_of_cuda(struct vgpu_devices *devices, CUdevice device)
{
    const int known = (int)(sizeof devices->of_cuda / sizeof *devices->of_cuda);
    if (device < 0 || device >= known) return VGPU_DEVICE_UNKNOWN;
    const int cached = atomic_load_explicit(&devices->of_cuda[device], memory_order_relaxed);
    if (cached != 0) return cached > 0 ? cached - 1 : VGPU_DEVICE_UNPLACED;
    char uuid[VGPU_UUID_BYTES];
    if (cuda_uuid(device, uuid) != 0) return VGPU_DEVICE_UNKNOWN;
    const int index = index_of(devices, uuid);
    atomic_store_explicit(&devices->of_cuda[device], (int8_t)(index >= 0 ? index + 1 : -1), memory_order_relaxed);
    return index;
}

int vgpu_devices_of_nvml(struct vgpu_devices *devices, nvmlDevice_t device)
{
    const struct vgpu_nvml *nvml = vgpu_nvml();
    char uuid[VGPU_UUID_BYTES];
    if (nvml == NULL || nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS) return VGPU_DEVICE_UNKNOWN;
    return index_of(devices, uuid);
}
