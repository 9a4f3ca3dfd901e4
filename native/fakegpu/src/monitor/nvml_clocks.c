/* Clocks, limits of power, and the bus of a device in the stand-in NVML. They follow the card's load as an A100's do. */
#include "nvml/nvml.h"

enum { GRAPHICS, SM, MEMORY, VIDEO, CLOCKS };
static const unsigned int MOST_MHZ[CLOCKS] = {1410, 1410, 1593, 1290}, LEAST_MHZ[CLOCKS] = {210, 210, 1593, 585};
enum { LIMIT_MW = 400000, LEAST_LIMIT_MW = 100000 };

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int clock, unsigned int *mhz)
{
    nvmlUtilization_t busy;
    ANSWER(device, mhz);
    if (clock < 0 || clock >= CLOCKS) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = nvmlDeviceGetUtilizationRates(device, &busy);
    if (result == NVML_SUCCESS) *mhz = busy.gpu > 0 ? MOST_MHZ[clock] : LEAST_MHZ[clock];
    return result;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int clock, unsigned int *mhz)
{
    ANSWER(device, mhz);
    if (clock < 0 || clock >= CLOCKS) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = MOST_MHZ[clock];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, int clock, unsigned int *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, clock, mhz);
}

/* A data centre's card stays in P0, at work and idle. */
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state)
{
    ANSWER(device, state);
    *state = 0;
    return NVML_SUCCESS;
}

/* nvmlClocksEventReasons: a bit for "idle", none at work. */
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    nvmlUtilization_t busy;
    ANSWER(device, reasons);
    const nvmlReturn_t result = nvmlDeviceGetUtilizationRates(device, &busy);
    if (result == NVML_SUCCESS) *reasons = busy.gpu == 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ANSWER(device, milliwatts);
    *milliwatts = LIMIT_MW;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least, unsigned int *most)
{
    ANSWER(device, least);
    if (most == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *least = LEAST_LIMIT_MW;
    *most = LIMIT_MW;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int threshold, unsigned int *celsius)
{
    /* Shutdown, slowdown, memory's and the GPU's greatest. */
    static const unsigned int KNOWN[] = {92, 89, 95, 85};
    ANSWER(device, celsius);
    if (threshold < 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (threshold >= (int)(sizeof KNOWN / sizeof *KNOWN)) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = KNOWN[threshold];
    return NVML_SUCCESS;
}

/* The window through which the host reaches the card: all of its memory, of which nothing is mapped. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ANSWER(device, memory);
    if (fg_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t bytes = 1 << 20;
    while (bytes < fg_card(device)->memory_bytes) bytes *= 2;
    *memory = (nvmlBAR1Memory_t){.total = bytes, .free = bytes, .used = 0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
    ANSWER(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, int *mode)
{
    ANSWER(device, mode);
    *mode = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, int *active) { return nvmlDeviceGetDisplayMode(device, active); }

/* What this machine does not measure or have. */
#define NOT_THERE(symbol, parameters, output) \
    nvmlReturn_t symbol parameters            \
    {                                         \
        ANSWER(device, output);               \
        return NVML_ERROR_NOT_SUPPORTED;      \
    }

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *kib_per_s)
{
    enum { SENT, RECEIVED };
    ANSWER_OF_CARD(device, kib_per_s);
    if (counter != SENT && counter != RECEIVED) return NVML_ERROR_INVALID_ARGUMENT;
    return fg_value(device, counter == SENT ? FG_VALUE_pcie_tx_kib_per_s : FG_VALUE_pcie_rx_kib_per_s, kib_per_s);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    ANSWER(device, generation);
    *generation = 4;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    return nvmlDeviceGetCurrPcieLinkGeneration(device, generation);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes)
{
    ANSWER(device, lanes);
    *lanes = 16;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes)
{
    return nvmlDeviceGetCurrPcieLinkWidth(device, lanes);
}

/* Driver models are Windows's. */
NOT_THERE(nvmlDeviceGetDriverModel, (nvmlDevice_t device, int *current, int *pending), pending ? current : NULL)
NOT_THERE(nvmlDeviceGetDriverModel_v2, (nvmlDevice_t device, int *current, int *pending), pending ? current : NULL)

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *text, unsigned int length)
{
    ANSWER(device, text);
    return fg_put_text(text, length, "92.00.45.00.03");
}
