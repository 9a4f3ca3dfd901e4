/* MIG in the stand-in NVML: the making and destroying of compute instances, which programs see as devices. */
#include "mig/nvml_mig_handles.h"

#include <stdio.h>
#include <string.h>

enum { COMPUTE_INSTANCE_TAG = 0x46474349 };

/* Of one process, as those of GPU instances. */
struct nvmlComputeInstance_st {
    uint32_t tag, made;
    int card, slot;
};
static struct nvmlComputeInstance_st compute_handles[FG_MAX_DEVICES][FG_MAX_MIG];

static nvmlComputeInstance_t compute_handle(int card, int slot)
{
    compute_handles[card][slot] = (struct nvmlComputeInstance_st){
        .tag = COMPUTE_INSTANCE_TAG, .made = state_of(card)->devices[slot].made, .card = card, .slot = slot};
    return &compute_handles[card][slot];
}

static nvmlReturn_t check_compute_instance(nvmlComputeInstance_t handle)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (handle == NULL || handle->tag != COMPUTE_INSTANCE_TAG) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_mig_device *device = &state_of(handle->card)->devices[handle->slot];
    if (!device->live || device->made != handle->made) return NVML_ERROR_NOT_FOUND;
    return check_card(handle->card);
}

static struct fg_mig_device *compute_instance(nvmlComputeInstance_t handle) { return &state_of(handle->card)->devices[handle->slot]; }

static const struct fg_gpu_instance *home_of(int card, const struct fg_mig_device *device, int *slot)
{
    for (int i = 0; i < FG_MAX_MIG; i++) {
        const struct fg_gpu_instance *instance = &state_of(card)->instances[i];
        if (!instance->live || instance->id != device->gpu_instance) continue;
        *slot = i;
        return instance;
    }
    return NULL;
}

/* Slices of each compute instance profile, by number, which is also its id; 0: there is none here. */
static int compute_slices(unsigned int number)
{
    static const int slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7};
    return number < NVML_COMPUTE_INSTANCE_PROFILE_COUNT ? slices[number] : 0;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned int profile, unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    const nvmlReturn_t checked = fg_check_gpu_instance(handle);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL || engines != 0 || profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    const int slices = compute_slices(profile), whole = gpu_instance(handle)->slices;
    if (slices == 0 || slices > whole) return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = profile;
    info->sliceCount = (unsigned int)slices;
    info->instanceCount = (unsigned int)(whole / slices);
    info->multiprocessorCount = fg_mig_multiprocessors(card_at(handle->card), slices);
    return NVML_SUCCESS;
}

static void name_device(struct fg_mig_device *device, int card)
{
    uint64_t mark = 0xcbf29ce484222325u;
    for (const char *at = card_at(card)->uuid; *at != '\0'; at++) mark = (mark ^ (unsigned char)*at) * 0x100000001b3u;
    snprintf(device->uuid, sizeof device->uuid, "MIG-%08x-%04x-5%03x-8%03x-%012x", (unsigned int)(mark >> 32),
             (unsigned int)(mark >> 16) & 0xffff, (unsigned int)mark & 0xfff, device->gpu_instance << 4 | device->compute_instance,
             device->made);
}

static nvmlReturn_t make_compute_instance(nvmlGpuInstance_t handle, unsigned int profile_id, nvmlComputeInstance_t *made)
{
    struct fg_mig_state *mig = state_of(handle->card);
    const struct fg_gpu_instance *instance = gpu_instance(handle);
    unsigned int id = 0;
    int used = 0, slot = -1;
    for (int i = 0; i < FG_MAX_MIG; i++) {
        const struct fg_mig_device *device = &mig->devices[i];
        if (!device->live && slot < 0) slot = i;
        if (!device->live || device->gpu_instance != instance->id) continue;
        used += device->slices;
        if (device->compute_instance >= id) id = device->compute_instance + 1;
    }
    const int slices = compute_slices(profile_id);
    if (slot < 0 || used + slices > instance->slices) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct fg_mig_device *device = &mig->devices[slot];
    *device = (struct fg_mig_device){.gpu_instance = instance->id, .compute_instance = id, .slices = slices, .made = ++mig->made};
    name_device(device, handle->card);
    device->live = true;
    *made = compute_handle(handle->card, slot);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int profile_id, nvmlComputeInstance_t *made)
{
    const nvmlReturn_t checked = fg_check_gpu_instance(handle);
    if (checked != NVML_SUCCESS) return checked;
    if (made == NULL || compute_slices(profile_id) == 0) return NVML_ERROR_INVALID_ARGUMENT;
    const int fault = fg_fault(FG_CALL_NVML_MAKE_COMPUTE_INSTANCE);
    if (fault != 0) return (nvmlReturn_t)fault;
    fg_lock(fg_nvml.state);
    const nvmlReturn_t result = make_compute_instance(handle, profile_id, made);
    fg_unlock(fg_nvml.state);
    return result;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    nvmlReturn_t result = check_compute_instance(handle);
    int slot;
    if (result != NVML_SUCCESS) return result;
    fg_lock(fg_nvml.state);
    struct fg_mig_device *device = compute_instance(handle);
    const struct fg_gpu_instance *home = home_of(handle->card, device, &slot);
    if (home != NULL && home->busy)
        result = NVML_ERROR_IN_USE;
    else
        device->live = false;
    fg_unlock(fg_nvml.state);
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int profile_id, nvmlComputeInstance_t *instances,
                                                unsigned int *count)
{
    const nvmlReturn_t checked = fg_check_gpu_instance(handle);
    if (checked != NVML_SUCCESS) return checked;
    if (instances == NULL || count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int slot = 0; slot < FG_MAX_MIG; slot++) {
        const struct fg_mig_device *device = &state_of(handle->card)->devices[slot];
        if (device->live && device->gpu_instance == gpu_instance(handle)->id && device->slices == compute_slices(profile_id))
            instances[(*count)++] = compute_handle(handle->card, slot);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    const nvmlReturn_t checked = check_compute_instance(handle);
    if (checked != NVML_SUCCESS) return checked;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const struct fg_mig_device *device = compute_instance(handle);
    int slot = 0;
    if (home_of(handle->card, device, &slot) == NULL) return NVML_ERROR_NOT_FOUND;
    unsigned int profile = 0;
    while (compute_slices(profile) != device->slices && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT) profile++;
    *info = (nvmlComputeInstanceInfo_t){.device = fg_handle_of_card(handle->card),
                                        .gpuInstance = fg_gpu_handle(handle->card, slot),
                                        .id = device->compute_instance,
                                        .profileId = profile,
                                        .placement = {.start = 0, .size = (unsigned int)device->slices}};
    return NVML_SUCCESS;
}
