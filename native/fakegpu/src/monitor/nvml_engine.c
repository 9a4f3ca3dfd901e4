/* Engines beside the multiprocessors in the stand-in NVML, fans, and accounting: only what the machine's file or fakegpu-ctl gives them. */
#include "nvml/nvml.h"

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
ENGINE(nvmlDeviceGetJpgUtilization, FG_VALUE_jpeg_percent)
ENGINE(nvmlDeviceGetOfaUtilization, FG_VALUE_optical_flow_percent)

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency_us)
{
    ANSWER_OF_CARD(device, sessions);
    if (fps == NULL || latency_us == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = fg_value(device, FG_VALUE_encoder_sessions, sessions);
    if (result == NVML_SUCCESS) result = fg_value(device, FG_VALUE_encoder_fps, fps);
    return result == NVML_SUCCESS ? fg_value(device, FG_VALUE_encoder_latency_us, latency_us) : result;
}

/* Off, which leaves nothing to ask of single processes. */
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, int *mode)
{
    ANSWER_OF_CARD(device, mode);
    *mode = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
    ANSWER_OF_CARD(device, size);
    *size = 4000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
    ANSWER_OF_CARD(device, percent);
    return fg_value(device, FG_VALUE_fan_percent, percent);
}

/* One fan, or none. */
nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count)
{
    unsigned int percent;
    ANSWER_OF_CARD(device, count);
    *count = fg_value(device, FG_VALUE_fan_percent, &percent) == NVML_SUCCESS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
    ANSWER_OF_CARD(device, percent);
    return fan == 0 ? fg_value(device, FG_VALUE_fan_percent, percent) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
    return nvmlDeviceGetFanSpeed_v2(device, fan, percent);
}
