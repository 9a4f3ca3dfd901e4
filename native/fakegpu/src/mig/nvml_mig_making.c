/* MIG in the stand-in NVML: what a card can be cut into, and the making and destroying of GPU instances. */
#include "mig/nvml_mig_handles.h"

#include <stdio.h>
#include <string.h>

enum { GPU_INSTANCE_TAG = 0x46474749 };

static struct nvmlGpuInstance_st gpu_handles[FG_MAX_DEVICES][FG_MAX_MIG];

nvmlGpuInstance_t fg_gpu_handle(int card, int slot)
{
    gpu_handles[card][slot] =
        (struct nvmlGpuInstance_st){.tag = GPU_INSTANCE_TAG, .made = state_of(card)->instances[slot].made, .card = card, .slot = slot};
    return &gpu_handles[card][slot];
}

nvmlReturn_t fg_check_gpu_instance(nvmlGpuInstance_t handle)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (handle == NULL || handle->tag != GPU_INSTANCE_TAG) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_gpu_instance *instance = &state_of(handle->card)->instances[handle->slot];
    if (!instance->live || instance->made != handle->made) return NVML_ERROR_NOT_FOUND;
    return check_card(handle->card);
}

/* A card that can be cut, whatever mode it is in. */
static nvmlReturn_t check_mig_card(nvmlDevice_t device)
{
    const nvmlReturn_t checked = fg_check(device);
    if (checked != NVML_SUCCESS) return checked;
    return fg_card(device)->major < 8 || fg_is_mig(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* A card in MIG mode and one of its profiles. */
static nvmlReturn_t check_cut(nvmlDevice_t device, unsigned int profile_id, const struct fg_mig_profile **profile)
{
    const nvmlReturn_t checked = check_mig_card(device);
    if (checked != NVML_SUCCESS) return checked;
    if (!state_of(device->card)->mode) return NVML_ERROR_NOT_SUPPORTED;
    *profile = fg_mig_profile_of_id(fg_card(device), profile_id);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
    const nvmlReturn_t checked = check_mig_card(device);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_mig_profile *found = fg_mig_profile(fg_card(device), profile);
    if (found == NULL) return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = found->id;
    info->sliceCount = (unsigned int)found->slices;
    info->instanceCount = (unsigned int)found->count;
    info->multiprocessorCount = fg_mig_multiprocessors(fg_card(device), found->slices);
    info->copyEngineCount = (unsigned int)found->slices;
    info->memorySizeMB = fg_mig_memory_bytes(fg_card(device), found) >> 20;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    nvmlGpuInstanceProfileInfo_t plain;
    char name[32];
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &plain);
    if (result != NVML_SUCCESS) return result;
    memset(info, 0, sizeof *info);
    info->version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2);
    info->id = plain.id;
    info->sliceCount = plain.sliceCount;
    info->instanceCount = plain.instanceCount;
    info->multiprocessorCount = plain.multiprocessorCount;
    info->copyEngineCount = plain.copyEngineCount;
    info->memorySizeMB = plain.memorySizeMB;
    fg_mig_name(fg_card(device), fg_mig_profile(fg_card(device), profile), name);
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    const struct fg_mig_profile *profile;
    const nvmlReturn_t checked = check_cut(device, profile_id, &profile);
    if (checked != NVML_SUCCESS) return checked;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned int room = *count;
    *count = (unsigned int)profile->count;
    if (placements == NULL) return NVML_SUCCESS;
    if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; i < profile->count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){.start = profile->starts[i], .size = profile->size};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile_id, unsigned int *count)
{
    const struct fg_mig_profile *profile;
    const nvmlReturn_t checked = check_cut(device, profile_id, &profile);
    if (checked != NVML_SUCCESS) return checked;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < profile->count; i++) *count += fg_mig_is_free(state_of(device->card), profile->starts[i], profile->size);
    return NVML_SUCCESS;
}

/* The smallest id from `least` on that no GPU instance of the card has; drivers number them by size, from 0 for a whole card. */
static unsigned int free_id(const struct fg_mig_state *mig, unsigned int least)
{
    for (unsigned int id = least;; id++) {
        bool used = false;
        for (int i = 0; i < FG_MAX_MIG; i++) used = used || (mig->instances[i].live && mig->instances[i].id == id);
        if (!used) return id;
    }
}

static nvmlReturn_t make_gpu_instance(int card, const struct fg_mig_profile *profile, unsigned int start, nvmlGpuInstance_t *made)
{
    struct fg_mig_state *mig = state_of(card);
    const unsigned int least = profile->slices == 7 ? 0 : profile->slices >= 3 ? 1 : profile->slices == 2 ? 3 : 7;
    if (!fg_mig_is_free(mig, start, profile->size)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (int slot = 0; slot < FG_MAX_MIG; slot++) {
        if (mig->instances[slot].live) continue;
        mig->instances[slot] = (struct fg_gpu_instance){.id = free_id(mig, least),
                                                        .profile_id = profile->id,
                                                        .start = start,
                                                        .size = profile->size,
                                                        .slices = profile->slices,
                                                        .memory_bytes = fg_mig_memory_bytes(card_at(card), profile),
                                                        .made = ++mig->made};
        mig->instances[slot].live = true;
        *made = fg_gpu_handle(card, slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* NULL: at any placement that is free. */
static nvmlReturn_t cut_card(nvmlDevice_t device, unsigned int profile_id, const nvmlGpuInstancePlacement_t *placement,
                             nvmlGpuInstance_t *made)
{
    const struct fg_mig_profile *profile;
    nvmlReturn_t result = check_cut(device, profile_id, &profile);
    if (result != NVML_SUCCESS) return result;
    if (made == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const int fault = fg_fault(FG_CALL_NVML_MAKE_GPU_INSTANCE);
    if (fault != 0) return (nvmlReturn_t)fault;
    result = placement != NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_RESOURCES;
    fg_lock(fg_nvml.state);
    for (int i = 0; i < profile->count && result != NVML_SUCCESS; i++)
        if (placement == NULL || (placement->start == profile->starts[i] && placement->size == profile->size))
            result = make_gpu_instance(device->card, profile, profile->starts[i], made);
    fg_unlock(fg_nvml.state);
    return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *made)
{
    return cut_card(device, profile_id, NULL, made);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                      const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *made)
{
    return placement != NULL ? cut_card(device, profile_id, placement, made) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    nvmlReturn_t result = fg_check_gpu_instance(handle);
    if (result != NVML_SUCCESS) return result;
    const int fault = fg_fault(FG_CALL_NVML_DESTROY_INSTANCE);
    if (fault != 0) return (nvmlReturn_t)fault;
    fg_lock(fg_nvml.state);
    struct fg_gpu_instance *instance = gpu_instance(handle);
    for (int i = 0; i < FG_MAX_MIG; i++) {
        const struct fg_mig_device *device = &state_of(handle->card)->devices[i];
        if (device->live && device->gpu_instance == instance->id) result = NVML_ERROR_IN_USE;
    }
    if (instance->busy) result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS) instance->live = false;
    fg_unlock(fg_nvml.state);
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instances, unsigned int *count)
{
    const struct fg_mig_profile *profile;
    const nvmlReturn_t checked = check_cut(device, profile_id, &profile);
    if (checked != NVML_SUCCESS) return checked;
    if (instances == NULL || count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int slot = 0; slot < FG_MAX_MIG; slot++) {
        const struct fg_gpu_instance *instance = &state_of(device->card)->instances[slot];
        if (instance->live && instance->profile_id == profile_id) instances[(*count)++] = fg_gpu_handle(device->card, slot);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    const nvmlReturn_t checked = check_mig_card(device);
    if (checked != NVML_SUCCESS) return checked;
    if (instance == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (int slot = 0; slot < FG_MAX_MIG; slot++) {
        const struct fg_gpu_instance *found = &state_of(device->card)->instances[slot];
        if (!found->live || found->id != id) continue;
        *instance = fg_gpu_handle(device->card, slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    const nvmlReturn_t checked = fg_check_gpu_instance(handle);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_gpu_instance *instance = gpu_instance(handle);
    *info = (nvmlGpuInstanceInfo_t){.device = fg_handle_of_card(handle->card),
                                    .id = instance->id,
                                    .profileId = instance->profile_id,
                                    .placement = {.start = instance->start, .size = instance->size}};
    return NVML_SUCCESS;
}
