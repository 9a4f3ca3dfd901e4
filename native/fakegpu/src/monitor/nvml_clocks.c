/* Clocks, power, the bus and the engines of a device in the stand-in NVML, and its ECC errors. Clocks follow the card's load as an A100's
 * do; what nothing here produces is what the machine's file or fakegpu-ctl sets (value.def).
 */
#include "nvml/nvml.h"

enum { CORRECTED, UNCORRECTED, SINCE_START = 0, LIFETIME };

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *errors)
{
    ANSWER_OF_CARD(device, errors);
    if (type < CORRECTED || type > UNCORRECTED || counter < SINCE_START || counter > LIFETIME) return NVML_ERROR_INVALID_ARGUMENT;
    if (counter == SINCE_START) return fg_long_value(device, type == CORRECTED ? FG_VALUE_ecc_corrected : FG_VALUE_ecc_uncorrected, errors);
    return fg_long_value(device, type == CORRECTED ? FG_VALUE_ecc_corrected_lifetime : FG_VALUE_ecc_uncorrected_lifetime, errors);
}

enum { GRAPHICS, SM, MEMORY, VIDEO, CLOCKS };
static const unsigned int MOST_MHZ[CLOCKS] = {1410, 1410, 1593, 1290}, LEAST_MHZ[CLOCKS] = {210, 210, 1593, 585};
enum { LIMIT_MW = 400000 };

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

/* A data centre's card stays in P0, at work and idle. */
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state)
{
    ANSWER(device, state);
    *state = 0;
    return NVML_SUCCESS;
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

/* Driver models are Windows's. */
NOT_THERE(nvmlDeviceGetDriverModel, (nvmlDevice_t device, int *current, int *pending), pending ? current : NULL)
NOT_THERE(nvmlDeviceGetDriverModel_v2, (nvmlDevice_t device, int *current, int *pending), pending ? current : NULL)

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    unsigned int celsius = 0;
    ANSWER(device, temperature);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
    if (result == NVML_SUCCESS) temperature->temperature = (int)celsius;
    return result;
}

static nvmlReturn_t busy(nvmlDevice_t device, enum fg_value value, unsigned int *percent, unsigned int *period_us)
{
    ANSWER_OF_CARD(device, percent);
    if (period_us == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *period_us = (unsigned int)(fg_nvml.machine->timing.sample_ns / 1000);
    return fg_value(device, value, percent);
}

#define ENGINE(symbol, value)                                                                \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) \
    {                                                                                        \
        return busy(device, value, percent, period_us);                                      \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, FG_VALUE_encoder_percent)
ENGINE(nvmlDeviceGetDecoderUtilization, FG_VALUE_decoder_percent)

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
    ANSWER_OF_CARD(device, percent);
    return fg_value(device, FG_VALUE_fan_percent, percent);
}
