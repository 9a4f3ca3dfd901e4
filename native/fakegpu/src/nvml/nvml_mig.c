/* MIG in the stand-in NVML: the mode of a card, and its MIG devices (compute instances) with handles of their own. */
#include "nvml/nvml.h"

#include <string.h>

static struct fg_mig_state *state_of(nvmlDevice_t device) { return &fg_nvml.state->cards[device->card].mig; }

static const struct fg_mig_device *mig_device(nvmlDevice_t device) { return &state_of(device)->devices[device->mig - 1]; }

static const struct fg_gpu_instance *instance_of(nvmlDevice_t device)
{
    static const struct fg_gpu_instance GONE;
    const struct fg_mig_state *mig = state_of(device);
    for (int i = 0; i < FG_MAX_MIG; i++)
        if (mig->instances[i].live && mig->instances[i].id == mig_device(device)->gpu_instance) return &mig->instances[i];
    return &GONE;
}

const char *fg_mig_uuid(nvmlDevice_t device) { return mig_device(device)->uuid; }

uint64_t fg_mig_bytes(nvmlDevice_t device) { return instance_of(device)->memory_bytes; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ANSWER(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_card(device)->major < 8 || fg_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    *current = state_of(device)->mode;
    *pending = state_of(device)->pending;
    return NVML_SUCCESS;
}

static bool is_used(const struct fg_state *state, int card)
{
    for (int i = 0; i < state->process_count; i++)
        if (state->processes[i].pid != 0 && state->processes[i].context[card]) return true;
    for (int i = 0; i < FG_MAX_MIG; i++)
        if (state->cards[card].mig.instances[i].live) return true;
    return false;
}

/* The mode changes at once on a card that nobody uses; else it waits for a reset, which there is none of here. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    ANSWER(device, activation);
    if (mode > NVML_DEVICE_MIG_ENABLE) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_card(device)->major < 8 || fg_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    fg_lock(fg_nvml.state);
    fg_sweep(fg_nvml.state);
    struct fg_mig_state *mig = state_of(device);
    const bool used = mode != mig->mode && is_used(fg_nvml.state, device->card);
    mig->pending = mode;
    if (!used) mig->mode = mode;
    fg_unlock(fg_nvml.state);
    *activation = used ? NVML_ERROR_IN_USE : NVML_SUCCESS;
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
    if (!state_of(device)->devices[index].live) return NVML_ERROR_NOT_FOUND;
    struct nvmlDevice_st *handle = &fg_mig_handles[device->card][index];
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
    *id = mig_device(device)->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ANSWER(device, id);
    if (!fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    *id = mig_device(device)->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ANSWER(device, attributes);
    if (!fg_is_mig(device)) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_gpu_instance *instance = instance_of(device);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = fg_mig_multiprocessors(fg_card(device), mig_device(device)->slices);
    attributes->gpuInstanceSliceCount = (unsigned int)instance->slices;
    attributes->computeInstanceSliceCount = (unsigned int)mig_device(device)->slices;
    attributes->memorySizeMB = instance->memory_bytes >> 20;
    return NVML_SUCCESS;
}
