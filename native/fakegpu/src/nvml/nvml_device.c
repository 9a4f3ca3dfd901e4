/* One device in the stand-in NVML: name, memory, load and modes. */
#include "nvml/nvml.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ANSWER(device, index);
    *index = device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ANSWER(device, uuid);
    return fg_put_text(uuid, length, fg_is_mig(device) ? fg_mig_uuid(device) : fg_card(device)->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ANSWER(device, name);
    return fg_put_text(name, length, fg_card(device)->name);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, int *brand)
{
    ANSWER(device, brand);
    *brand = strstr(fg_card(device)->name, "Tesla") != NULL ? 2 : 14; /* Tesla, else NVIDIA */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    char text[32];
    ANSWER(device, serial);
    snprintf(text, sizeof text, "13%011u", device->card + 1);
    return fg_put_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    ANSWER(device, minor);
    *minor = (unsigned int)device->card;
    return NVML_SUCCESS;
}

void fg_fill_pci(const struct fg_card *card, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = card->pci_domain;
    pci->bus = card->pci_bus;
    pci->device = card->pci_device;
    pci->pciDeviceId = 0x20B210DE;
    pci->pciSubSystemId = 0x147F10DE;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF, pci->device & 0xFF);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)
{
    nvmlPciInfo_t known;
    ANSWER(device, pci);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    fg_fill_pci(fg_card(device), &known);
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version,
                                 .domain = known.domain,
                                 .bus = known.bus,
                                 .device = known.device,
                                 .pciDeviceId = known.pciDeviceId,
                                 .pciSubSystemId = known.pciSubSystemId,
                                 .baseClass = 3,
                                 .subClass = 2}; /* display, 3D controller */
    memcpy(pci->busId, known.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ANSWER(device, pci);
    fg_fill_pci(fg_card(device), pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ANSWER(device, major);
    if (minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *major = fg_card(device)->major;
    *minor = fg_card(device)->minor;
    return NVML_SUCCESS;
}

struct bytes {
    unsigned long long total, used;
};

static struct bytes memory_of(nvmlDevice_t device)
{
    if (fg_is_mig(device)) return (struct bytes){.total = fg_mig_bytes(device), .used = 0}; /* nothing runs on instances here */
    fg_lock(fg_nvml.state);
    fg_sweep(fg_nvml.state);
    const struct fg_card_state *card = &fg_nvml.state->cards[device->card];
    const struct bytes bytes = {.total = card->total_bytes, .used = card->used_bytes};
    fg_unlock(fg_nvml.state);
    return bytes;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ANSWER(device, memory);
    const int fault = fg_fault(FG_CALL_NVML_MEMORY);
    if (fault != 0) return (nvmlReturn_t)fault;
    const struct bytes card = memory_of(device);
    *memory = (nvmlMemory_t){.total = card.total, .used = card.used, .free = card.total - card.used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ANSWER(device, memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const int fault = fg_fault(FG_CALL_NVML_MEMORY);
    if (fault != 0) return (nvmlReturn_t)fault;
    const struct bytes card = memory_of(device);
    memory->total = card.total;
    memory->reserved = 0;
    memory->used = card.used;
    memory->free = card.total - card.used;
    return NVML_SUCCESS;
}

static unsigned int busy_percent(nvmlDevice_t device)
{
    fg_lock(fg_nvml.state);
    const unsigned int percent = fg_utilisation(fg_nvml.machine, fg_clock_now(fg_nvml.state, device->card)->card_samples);
    fg_unlock(fg_nvml.state);
    return percent;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ANSWER(device, utilization);
    const unsigned int percent = busy_percent(device);
    /* A kernel here moves no data that could be measured; half its time is as good a guess as any for its memory traffic. */
    *utilization = (nvmlUtilization_t){.gpu = percent, .memory = percent / 2};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
    ANSWER(device, celsius);
    if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_value(device, FG_VALUE_temperature_c, celsius) == NVML_SUCCESS) return NVML_SUCCESS;
    *celsius = 35 + busy_percent(device) * 45 / 100; /* idle to full load */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    ANSWER(device, milliwatts);
    if (fg_value(device, FG_VALUE_power_mw, milliwatts) != NVML_SUCCESS) *milliwatts = fg_power_mw(busy_percent(device));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *mode)
{
    ANSWER(device, mode);
    *mode = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    ANSWER(device, mode);
    *mode = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t fg_long_value(nvmlDevice_t device, enum fg_value value, unsigned long long *found)
{
    const int64_t now = fg_nvml.state->cards[device->card].values[value];
    if (now == FG_UNKNOWN) return NVML_ERROR_NOT_SUPPORTED;
    *found = (unsigned long long)now;
    return NVML_SUCCESS;
}

nvmlReturn_t fg_value(nvmlDevice_t device, enum fg_value value, unsigned int *found)
{
    unsigned long long whole;
    const nvmlReturn_t result = fg_long_value(device, value, &whole);
    if (result == NVML_SUCCESS) *found = whole > UINT32_MAX ? UINT32_MAX : (unsigned int)whole;
    return result;
}
