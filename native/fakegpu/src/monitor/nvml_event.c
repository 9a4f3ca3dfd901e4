/* Health events of the stand-in NVML: posted with fakegpu-ctl, delivered to every event set that registered for them. */
#include "nvml/nvml.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SET_TAG = 0x46474553 };
static const unsigned long long SUPPORTED = NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_XID_CRITICAL;

struct nvmlEventSet_st {
    uint32_t tag;
    uint32_t seen; /* events already looked at */
    unsigned long long wanted[FG_MAX_DEVICES];
};

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    const nvmlReturn_t result = fg_check(device);
    if (result != NVML_SUCCESS) return result;
    if (types == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    if (*set == NULL) return NVML_ERROR_MEMORY;
    (*set)->tag = SET_TAG;
    (*set)->seen = fg_nvml.state->event_count;
    return NVML_SUCCESS;
}

static bool set_ok(nvmlEventSet_t set) { return set != NULL && set->tag == SET_TAG; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    const nvmlReturn_t result = fg_check(device);
    if (result != NVML_SUCCESS) return result;
    if (!set_ok(set)) return NVML_ERROR_INVALID_ARGUMENT;
    if ((types & ~SUPPORTED) != 0) return NVML_ERROR_NOT_SUPPORTED;
    set->wanted[device->card] |= types;
    return NVML_SUCCESS;
}

/* The next event that this set wants, if it has been posted. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool found = false;
    struct fg_state *state = fg_nvml.state;
    fg_lock(state);
    if (state->event_count - set->seen > FG_EVENTS) set->seen = state->event_count - FG_EVENTS; /* the oldest are lost */
    while (!found && set->seen != state->event_count) {
        const struct fg_event *event = &state->events[set->seen++ % FG_EVENTS];
        nvmlDevice_t device = fg_handle_of_card(event->card);
        if (device == NULL || (set->wanted[event->card] & event->type) == 0) continue;
        *data = (nvmlEventData_t){.device = device,
                                  .eventType = event->type,
                                  .eventData = event->data,
                                  .gpuInstanceId = 0xFFFFFFFF,
                                  .computeInstanceId = 0xFFFFFFFF};
        found = true;
    }
    fg_unlock(state);
    return found;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (!set_ok(set) || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    const int64_t until = fg_now_ns() + (int64_t)timeout_ms * 1000000;
    for (;;) {
        const uint32_t posted = fg_nvml.state->event_count;
        if (take_event(set, data)) return NVML_SUCCESS;
        const int64_t left = until - fg_now_ns();
        if (left <= 0) return NVML_ERROR_TIMEOUT;
        const struct timespec wait = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        syscall(SYS_futex, &fg_nvml.state->event_count, FUTEX_WAIT, posted, &wait, NULL, 0);
    }
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    if (!set_ok(set)) return NVML_ERROR_INVALID_ARGUMENT;
    set->tag = 0;
    free(set);
    return NVML_SUCCESS;
}
