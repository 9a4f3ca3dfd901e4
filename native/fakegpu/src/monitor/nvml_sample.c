/* Samples over time in the stand-in NVML: those that the card's clock keeps, also in the lists of processes with a version. */
#include "nvml/nvml.h"

#include <stdlib.h>

/* Busy percent of each sample that is shown, oldest first; those that end after `since_us`. */
struct shown {
    unsigned long long end_us[FG_SAMPLES];
    unsigned int percent[FG_SAMPLES], count;
};

static void read_samples(nvmlDevice_t device, unsigned long long since_us, struct shown *shown)
{
    const struct fg_machine *machine = fg_nvml.machine;
    const int64_t length_ns = machine->timing.sample_ns;
    shown->count = 0;
    fg_lock(fg_nvml.state);
    const struct fg_clock *clock = fg_clock_now(fg_nvml.state, device->card);
    const int64_t newest = (clock->at_ns - machine->sample_delay_ns) / length_ns - 1;
    for (int64_t number = newest - FG_SAMPLES + 2 > 0 ? newest - FG_SAMPLES + 2 : 0; number <= newest; number++) {
        const int64_t end_ns = (number + 1) * length_ns;
        const unsigned long long end_us = (unsigned long long)(fg_nvml.state->since_1970_ns + end_ns) / 1000;
        /* At its own end the sample would be shown, unless it is one that goes missing. */
        const bool missing = fg_sample_shown(&machine->timing, end_ns, 0, machine->sample_missing_percent) != number;
        if (missing || end_us <= since_us) continue;
        shown->end_us[shown->count] = end_us;
        shown->percent[shown->count++] = (unsigned int)(fg_sample_busy_ns(clock->card_samples, number) * 100 / length_ns);
    }
    fg_unlock(fg_nvml.state);
}

enum { POWER, GPU_BUSY, MEMORY_BUSY, ENCODER, DECODER, PROCESSOR_CLOCK, MEMORY_CLOCK, MODULE_POWER, JPEG, OPTICAL_FLOW, KINDS };

/* What a sample of that kind was when the card was so busy. */
static nvmlReturn_t sampled(nvmlDevice_t device, int kind, unsigned int percent, unsigned int *value)
{
    enum { MOST_MHZ = 1410, LEAST_MHZ = 210, MEMORY_MHZ = 1593 };
    switch (kind) {
    case POWER: return *value = fg_power_mw(percent), NVML_SUCCESS;
    case GPU_BUSY: return *value = percent, NVML_SUCCESS;
    case MEMORY_BUSY: return *value = percent / 2, NVML_SUCCESS;
    case PROCESSOR_CLOCK: return *value = percent > 0 ? MOST_MHZ : LEAST_MHZ, NVML_SUCCESS;
    case MEMORY_CLOCK: return *value = MEMORY_MHZ, NVML_SUCCESS;
    case ENCODER: return fg_value(device, FG_VALUE_encoder_percent, value);
    case DECODER: return fg_value(device, FG_VALUE_decoder_percent, value);
    case JPEG: return fg_value(device, FG_VALUE_jpeg_percent, value);
    case OPTICAL_FLOW: return fg_value(device, FG_VALUE_optical_flow_percent, value);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Without room: how many there can be at most. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since_us, int *value_type, unsigned int *count,
                                  nvmlSample_t *samples)
{
    struct shown shown;
    unsigned int value;
    ANSWER_OF_CARD(device, count);
    if (type < 0 || type >= KINDS || value_type == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t known = sampled(device, type, 0, &value);
    if (known != NVML_SUCCESS) return known;
    *value_type = NVML_VALUE_UNSIGNED_INT;
    if (samples == NULL) return *count = FG_SAMPLES, NVML_SUCCESS;
    read_samples(device, since_us, &shown);
    if (shown.count == 0) return *count = 0, NVML_ERROR_NOT_FOUND;
    const unsigned int skipped = shown.count > *count ? shown.count - *count : 0; /* the oldest */
    *count = shown.count - skipped;
    for (unsigned int i = 0; i < *count; i++) {
        const nvmlReturn_t result = sampled(device, type, shown.percent[skipped + i], &value);
        if (result != NVML_SUCCESS) return result;
        samples[i] = (nvmlSample_t){.timeStamp = shown.end_us[skipped + i], .sampleValue = {.uiVal = value}};
    }
    return NVML_SUCCESS;
}

unsigned long long fg_energy_mj(nvmlDevice_t device)
{
    int64_t busy_ns = 0;
    fg_lock(fg_nvml.state);
    const struct fg_clock *clock = fg_clock_now(fg_nvml.state, device->card);
    for (int i = 0; i < clock->queue_count; i++) busy_ns += clock->queues[i].done_ns;
    const int64_t up_ns = clock->at_ns;
    fg_unlock(fg_nvml.state);
    const double idle_w = fg_power_mw(0) / 1e3, busy_w = fg_power_mw(100) / 1e3 - idle_w;
    return (unsigned long long)(((double)up_ns * idle_w + (double)busy_ns * busy_w) / 1e6);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    ANSWER_OF_CARD(device, millijoules);
    *millijoules = fg_energy_mj(device);
    return NVML_SUCCESS;
}

/* On the heap, as programs ask from threads with small stacks. */
static nvmlReturn_t list_busy(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *list, nvmlProcessUtilizationSample_t *found)
{
    unsigned int count = FG_MAX_PROCESSES;
    const nvmlReturn_t result = nvmlDeviceGetProcessUtilization(device, found, &count, list->lastSeenTimeStamp);
    const unsigned int room = list->procUtilArray != NULL ? list->processSamplesCount : 0;
    if (result != NVML_SUCCESS) return result;
    list->processSamplesCount = count;
    if (count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < count; i++)
        list->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = found[i].timeStamp, .pid = found[i].pid, .smUtil = found[i].smUtil, .memUtil = found[i].memUtil};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *list)
{
    ANSWER_OF_CARD(device, list);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessUtilizationSample_t *found = calloc(FG_MAX_PROCESSES, sizeof *found);
    const nvmlReturn_t result = found != NULL ? list_busy(device, list, found) : NVML_ERROR_MEMORY;
    free(found);
    return result;
}

static nvmlReturn_t list_details(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list, nvmlProcessInfo_v2_t *found)
{
    enum { COMPUTE };
    unsigned int count = FG_MAX_PROCESSES;
    nvmlReturn_t result = NVML_SUCCESS;
    if (list->mode == COMPUTE)
        result = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, found);
    else
        count = 0; /* nobody draws here, and there is no MPS server */
    if (result != NVML_SUCCESS) return result;
    const unsigned int room = list->procArray != NULL ? list->numProcArrayEntries : 0;
    list->numProcArrayEntries = count;
    if (count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < count; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){
            .pid = found[i].pid, .usedGpuMemory = found[i].usedGpuMemory, .gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    enum { MPS = 2 };
    ANSWER_OF_CARD(device, list);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode > MPS) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessInfo_v2_t *found = calloc(FG_MAX_PROCESSES, sizeof *found);
    const nvmlReturn_t result = found != NULL ? list_details(device, list, found) : NVML_ERROR_MEMORY;
    free(found);
    return result;
}
