/* MIG in the stand-in NVML: the instances that the configuration gives a card, with handles of their own. */
#include "nvml.h"

#include <string.h>

static struct nvmlDevice_st handles[FG_MAX_DEVICES][FG_MAX_MIG];

static const struct fg_mig *instance(nvmlDevice_t device)
{
    return device->mig > 0 ? &fg_card(device)->migs[device->mig - 1] : NULL;
}

bool fg_is_mig(nvmlDevice_t device) { return device >= &handles[0][0] && device < &handles[FG_MAX_DEVICES - 1][FG_MAX_MIG]; }

const char *fg_mig_uuid(nvmlDevice_t device) { return instance(device)->uuid; }

uint64_t fg_mig_bytes(nvmlDevice_t device) { return instance(device)->memory_bytes; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ANSWER(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_card(device)->major < 8 || fg_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = fg_card(device)->mig_mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ANSWER(device, count);
    *count = fg_card(device)->major < 8 ? 0 : FG_MAX_MIG;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ANSWER(device, mig);
    if (index >= FG_MAX_MIG || fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= (unsigned int)fg_card(device)->mig_count) return NVML_ERROR_NOT_FOUND;
    struct nvmlDevice_st *handle = &handles[device->card][index];
    *handle = *device;
    handle->index = index;
    handle->mig = (int)index + 1;
    *mig = handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ANSWER(device, is_mig);
    *is_mig = fg_is_mig(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    ANSWER(mig, device);
    if (!fg_is_mig(mig)) return NVML_ERROR_INVALID_ARGUMENT;
    *device = fg_handle_of_card(mig->card);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ANSWER(device, id);
    if (!fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    *id = instance(device)->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ANSWER(device, id);
    if (!fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    *id = instance(device)->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ANSWER(device, attributes);
    if (!fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_mig *mig = instance(device);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = (unsigned int)(fg_card(device)->sm_count * mig->gpu_slices / 7);
    attributes->gpuInstanceSliceCount = (unsigned int)mig->gpu_slices;
    attributes->computeInstanceSliceCount = (unsigned int)mig->compute_slices;
    attributes->memorySizeMB = mig->memory_bytes >> 20;
    return NVML_SUCCESS;
}
