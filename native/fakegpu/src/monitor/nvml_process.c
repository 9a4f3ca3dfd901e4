/* Processes of a card in the stand-in NVML: who holds memory, who computes. */
#include <stdlib.h>
#include "nvml/nvml.h"

struct user {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int busy_percent;   /* the mean of the samples that were asked for */
    unsigned long long busy_us; /* when the newest of them with something of it ended; 0: none */
};

/* 24 KB: programs ask from threads whose whole stack is smaller. */
static _Thread_local struct user users[FG_MAX_PROCESSES];

/* The end of a sample, in the microseconds since 1970 that NVML stamps samples with. */
static unsigned long long end_us(int64_t sample)
{
    return (unsigned long long)(fg_nvml.state->since_1970_ns + (sample + 1) * fg_nvml.machine->timing.sample_ns) / 1000;
}

/* The newest sample that ended by then. */
static int64_t sample_seen(unsigned long long us)
{
    const int64_t since_boot_ns = (int64_t)us * 1000 - fg_nvml.state->since_1970_ns;
    return since_boot_ns < 0 ? -1 : (since_boot_ns + 999) / fg_nvml.machine->timing.sample_ns - 1;
}

static void add_usage(struct user *user, const struct fg_clock *clock, int process, unsigned long long since_us)
{
    const struct fg_machine *machine = fg_nvml.machine;
    const int64_t shown = fg_sample_shown(&machine->timing, fg_now_ns(), machine->sample_delay_ns, machine->sample_missing_percent);
    const struct fg_usage usage = fg_usage_since(clock, &machine->timing, process, sample_seen(since_us), shown, 0);
    if (usage.newest < 0) return;
    user->busy_percent = (unsigned int)(usage.busy_ns * 100 / usage.length_ns);
    user->busy_us = end_us(usage.newest);
}

/* The processes that have a context on the card and are of the caller's pid namespace, into `users`. Returns how many. */
static unsigned int users_of(nvmlDevice_t device, unsigned long long since_us)
{
    unsigned int count = 0;
    fg_lock(fg_nvml.state);
    fg_sweep(fg_nvml.state);
    const struct fg_clock *clock = fg_clock_now(fg_nvml.state, device->card);
    for (int i = 0; i < fg_nvml.state->process_count; i++) {
        const struct fg_process *process = &fg_nvml.state->processes[i];
        if (process->pid == 0 || !process->context[device->card]) continue;
        const pid_t pid = fg_visible_pid(fg_nvml.state, process);
        if (pid == 0) continue;
        users[count] = (struct user){
            .pid = (unsigned int)(pid + fg_nvml.machine->pid_offset),
            .used_bytes = process->used_bytes[device->card],
        };
        add_usage(&users[count++], clock, i, since_us);
    }
    fg_unlock(fg_nvml.state);
    return count;
}

/* The protocol that all versions share: *count is the room on entry and the number on return. */
static nvmlReturn_t list_users(nvmlDevice_t device, unsigned int *count, const void *room)
{
    const nvmlReturn_t result = fg_check(device);
    if (result != NVML_SUCCESS) return result;
    if (count == NULL || (*count > 0 && room == NULL)) return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned int found = users_of(device, 0), capacity = *count;
    *count = found;
    return found > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes)
{
    const nvmlReturn_t result = list_users(device, count, processes);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
        processes[i] = (nvmlProcessInfo_v1_t){.pid = users[i].pid, .usedGpuMemory = users[i].used_bytes};
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes)
{
    const nvmlReturn_t result = list_users(device, count, processes);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
        processes[i] = (nvmlProcessInfo_v2_t){
            .pid = users[i].pid, .usedGpuMemory = users[i].used_bytes, .gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF};
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}

/* Nobody draws here, and there is no MPS server. */
static nvmlReturn_t list_nobody(nvmlDevice_t device, unsigned int *count)
{
    const nvmlReturn_t result = fg_check(device);
    if (result != NVML_SUCCESS) return result;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

#define NOBODY(symbol, type)                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *processes) \
    {                                                                              \
        (void)processes;                                                           \
        return list_nobody(device, count);                                         \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

/* One entry per process that computed since `since_us`: the mean of the samples since then, stamped with the end of the newest with
 * something of it; "not found" when there is none. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
                                             unsigned long long since_us)
{
    const nvmlReturn_t result = fg_check(device);
    if (result != NVML_SUCCESS) return result;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (!fg_nvml.machine->process_utilization) return NVML_ERROR_NOT_SUPPORTED;
    fg_gate(FG_CALL_NVML_USE, device->card);
    const int fault = fg_fault(FG_CALL_NVML_USE);
    if (fault != 0) return (nvmlReturn_t)fault;
    const unsigned int found = users_of(device, since_us), room = samples != NULL ? *count : 0;
    unsigned int busy = 0;
    for (unsigned int i = 0; i < found; i++) {
        if (users[i].busy_us <= since_us) continue;
        if (busy < room)
            samples[busy] = (nvmlProcessUtilizationSample_t){
                .pid = users[i].pid, .timeStamp = users[i].busy_us, .smUtil = users[i].busy_percent, .memUtil = users[i].busy_percent / 2};
        busy++;
    }
    *count = busy;
    return busy == 0 ? NVML_ERROR_NOT_FOUND : busy > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
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
