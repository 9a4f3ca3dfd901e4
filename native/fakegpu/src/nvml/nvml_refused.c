/* What the stand-in NVML has by name only (nvml_refused.def). */
#include "nvml/nvml.h"

#define REFUSED(symbol)                                                      \
    nvmlReturn_t symbol(nvmlDevice_t device)                                 \
    {                                                                        \
        const nvmlReturn_t checked = fg_check(device);                       \
        return checked != NVML_SUCCESS ? checked : NVML_ERROR_NOT_SUPPORTED; \
    }
#define DENIED(symbol)                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device)                                 \
    {                                                                        \
        const nvmlReturn_t checked = fg_check(device);                       \
        return checked != NVML_SUCCESS ? checked : NVML_ERROR_NO_PERMISSION; \
    }
#define ELSEWHERE(symbol) \
    nvmlReturn_t symbol(void) { return fg_nvml.machine == NULL ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_SUPPORTED; }
#include "nvml/nvml_refused.def"
