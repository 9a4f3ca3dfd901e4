/* Power and temperature of a device in the stand-in NVML, and which clocks and states it could take. */
#include "nvml/nvml.h"

#include <string.h>

enum { GRAPHICS, SM, MEMORY, VIDEO, CLOCKS };
enum { MEMORY_MHZ = 1593, LEAST_MHZ = 210, MOST_MHZ = 1410, STEP_MHZ = 15, STATE_UNKNOWN = 32 };

#define ALWAYS(symbol, type, value)                        \
    nvmlReturn_t symbol(nvmlDevice_t device, type *answer) \
    {                                                      \
        ANSWER_OF_CARD(device, answer);                    \
        *answer = value;                                   \
        return NVML_SUCCESS;                               \
    }
ALWAYS(nvmlDeviceGetPowerManagementMode, int, 1)
ALWAYS(nvmlDeviceGetPowerSource, int, 0) /* the mains */

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, int *state) { return nvmlDeviceGetPerformanceState(device, state); }

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    unsigned int celsius = 0;
    ANSWER(device, temperature);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
    if (result == NVML_SUCCESS) temperature->temperature = (int)celsius;
    return result;
}

nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned int sensor, nvmlGpuThermalSettings_t *settings)
{
    enum { INTERNAL = 1, OF_GPU = 1, ALL = 15, HOTTEST_C = 127, COLDEST_C = -40 };
    unsigned int celsius = 0;
    ANSWER_OF_CARD(device, settings);
    if (sensor != 0 && sensor != ALL) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = nvmlDeviceGetTemperature(device, 0, &celsius);
    memset(settings, 0, sizeof *settings);
    settings->count = 1;
    settings->sensor[0].controller = INTERNAL;
    settings->sensor[0].target = OF_GPU;
    settings->sensor[0].defaultMinTemp = COLDEST_C;
    settings->sensor[0].defaultMaxTemp = HOTTEST_C;
    settings->sensor[0].currentTemp = (int)celsius;
    return result;
}

/* How long a policy has held the clocks down. */
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, int policy, nvmlViolationTime_t *time)
{
    enum { BY_POWER, BY_HEAT, POLICIES = 12 };
    ANSWER_OF_CARD(device, time);
    if (policy < 0 || policy >= POLICIES) return NVML_ERROR_INVALID_ARGUMENT;
    if (policy != BY_POWER && policy != BY_HEAT) return NVML_ERROR_NOT_SUPPORTED;
    time->referenceTime = (unsigned long long)(fg_nvml.state->since_1970_ns + fg_now_ns()) / 1000;
    return fg_long_value(device, policy == BY_POWER ? FG_VALUE_power_throttled_ns : FG_VALUE_thermal_throttled_ns, &time->violationTime);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, int clock, int which, unsigned int *mhz)
{
    enum { NOW, WANTED, BY_DEFAULT, MOST };
    if (which == NOW) return nvmlDeviceGetClockInfo(device, clock, mhz);
    ANSWER(device, mhz);
    return which < NOW || which > MOST ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, int clock, unsigned int *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}
nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, int clock, unsigned int *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, int clock, int state, unsigned int *least, unsigned int *most)
{
    ANSWER_OF_CARD(device, least);
    if (most == NULL || clock < 0 || clock >= CLOCKS || state < 0 || state > 15) return NVML_ERROR_INVALID_ARGUMENT;
    if (state != 0) return NVML_ERROR_NOT_SUPPORTED;
    *least = clock == MEMORY ? MEMORY_MHZ : LEAST_MHZ;
    return nvmlDeviceGetMaxClockInfo(device, clock, most);
}

/* The protocol that both lists share: *count is the room on entry and the number on return. */
static nvmlReturn_t list_clocks(unsigned int most, unsigned int least, unsigned int *count, unsigned int *mhz)
{
    const unsigned int found = (most - least) / STEP_MHZ + 1, room = mhz != NULL ? *count : 0;
    *count = found;
    if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++) mhz[i] = most - i * STEP_MHZ;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *mhz)
{
    ANSWER_OF_CARD(device, count);
    return list_clocks(MEMORY_MHZ, MEMORY_MHZ, count, mhz);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int *count, unsigned int *mhz)
{
    ANSWER_OF_CARD(device, count);
    return memory_mhz != MEMORY_MHZ ? NVML_ERROR_NOT_FOUND : list_clocks(MOST_MHZ, LEAST_MHZ, count, mhz);
}

/* P0 alone; the rest of the list is "unknown". */
nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, int *states, unsigned int bytes)
{
    ANSWER_OF_CARD(device, states);
    if (bytes < sizeof *states) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < bytes / sizeof *states; i++) states[i] = i == 0 ? 0 : STATE_UNKNOWN;
    return NVML_SUCCESS;
}

/* Idle is the only reason that is ever given. */
ALWAYS(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1)
ALWAYS(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1)

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    enum { OF_GPU, OF_FRAME_BUFFER };
    nvmlUtilization_t busy;
    ANSWER_OF_CARD(device, info);
    const nvmlReturn_t result = nvmlDeviceGetUtilizationRates(device, &busy);
    if (result != NVML_SUCCESS) return result;
    memset(info, 0, sizeof *info);
    info->utilization[OF_GPU].bIsPresent = info->utilization[OF_FRAME_BUFFER].bIsPresent = 1;
    info->utilization[OF_GPU].percentage = busy.gpu;
    info->utilization[OF_FRAME_BUFFER].percentage = busy.memory;
    return NVML_SUCCESS;
}
