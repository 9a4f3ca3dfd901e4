#include "config/devices.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "intercept/missing_symbols.h"
#include "base/log.h"
#include "intercept/real.h"

/* CUDA gives the number alone, which is that of a whole card (GPU-...) or of a MIG instance (MIG-...). */
static const char *number_of(const char *uuid) { return strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0 ? uuid + 4 : uuid; }

static int index_of(const struct vgpu_devices *devices, const char *uuid)
{
    const int count = atomic_load(&devices->count);
    for (int i = 0; i < count; i++)
        if (strcmp(number_of(devices->uuid[i]), number_of(uuid)) == 0) return i;
    return VGPU_DEVICE_UNPLACED;
}

static void add(struct vgpu_devices *devices, const char *uuid)
{
    const int count = atomic_load(&devices->count);
    if (count == VGPU_MAX_DEVICES) {
        vgpu_log(VGPU_LOG_WARN, "device %s is beyond the %d that are counted", uuid, VGPU_MAX_DEVICES);
        return;
    }
    snprintf(devices->uuid[count], VGPU_UUID_BYTES, "%s", uuid);
    atomic_store(&devices->count, count + 1);
}

static int discover_by_nvml(struct vgpu_devices *devices)
{
    const struct vgpu_nvml *nvml = vgpu_nvml_begin();
    if (nvml == NULL) return -1;
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

/* The second version of the call names the MIG instance, the first one its card. */
static int cuda_uuid(CUresult (*ask)(CUuuid *, CUdevice), CUdevice device, char text[VGPU_UUID_BYTES])
{
    CUuuid uuid;
    if (ask(&uuid, device) != CUDA_SUCCESS) return -1;
    const unsigned char *b = uuid.bytes;
    snprintf(text, VGPU_UUID_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
             b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}

static void discover_by_cuda(struct vgpu_devices *devices)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    int count = 0;
    if (cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
    for (int i = 0; i < count; i++) {
        CUdevice device;
        char uuid[VGPU_UUID_BYTES];
        if (cuda->cuDeviceGet(&device, i) != CUDA_SUCCESS) continue;
        if (cuda_uuid(cuda->cuDeviceGetUuid_v2, device, uuid) == 0 || cuda_uuid(cuda->cuDeviceGetUuid, device, uuid) == 0)
            add(devices, uuid);
    }
}

void vgpu_devices_list(struct vgpu_devices *devices, const struct vgpu_config *config)
{
    for (size_t i = 0; i < config->device_count; i++)
        if (index_of(devices, config->uuid[i]) < 0) add(devices, config->uuid[i]);
    /* What had no place may have one now. */
    for (size_t i = 0; i < sizeof devices->of_cuda / sizeof *devices->of_cuda; i++)
        if (atomic_load(&devices->of_cuda[i]) < 0) atomic_store(&devices->of_cuda[i], 0);
}

struct vgpu_devices *vgpu_devices_discover(void)
{
    struct vgpu_devices *found = calloc(1, sizeof *found);
    if (found != NULL && discover_by_nvml(found) != 0) discover_by_cuda(found);
    return found;
}

void vgpu_devices_take(struct vgpu_devices *devices, const struct vgpu_devices *found)
{
    memcpy(devices->uuid, found->uuid, sizeof devices->uuid);
    atomic_store(&devices->count, atomic_load(&found->count));
}

int vgpu_devices_of_cuda(struct vgpu_devices *devices, CUdevice device)
{
    const int known = (int)(sizeof devices->of_cuda / sizeof *devices->of_cuda);
    if (device < 0 || device >= known) return VGPU_DEVICE_UNKNOWN;
    const int cached = atomic_load_explicit(&devices->of_cuda[device], memory_order_relaxed);
    if (cached != 0) return cached > 0 ? cached - 1 : VGPU_DEVICE_UNPLACED;
    const struct vgpu_cuda *cuda = vgpu_cuda();
    char instance[VGPU_UUID_BYTES], card[VGPU_UUID_BYTES];
    const bool has_instance = cuda_uuid(cuda->cuDeviceGetUuid_v2, device, instance) == 0;
    int index = has_instance ? index_of(devices, instance) : VGPU_DEVICE_UNPLACED;
    if (index < 0) {
        const bool has_card = cuda_uuid(cuda->cuDeviceGetUuid, device, card) == 0;
        if (!has_instance && !has_card) return VGPU_DEVICE_UNKNOWN;
        if (has_card) index = index_of(devices, card);
    }
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
