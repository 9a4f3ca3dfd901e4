/* What a card of the stand-in NVML is: architecture, board, bus, firmware. */
#include "nvml/nvml.h"

#include <stdio.h>
#include <string.h>

/* nvmlDeviceArchitecture of a compute capability. */
static unsigned int architecture_of(const struct fg_card *card)
{
    enum { KEPLER = 2, MAXWELL, PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL };
    const int capability = card->major * 10 + card->minor;
    if (capability >= 100) return BLACKWELL;
    if (capability >= 90) return HOPPER;
    if (capability >= 89) return ADA;
    if (capability >= 80) return AMPERE;
    if (capability >= 75) return TURING;
    if (capability >= 70) return VOLTA;
    if (capability >= 60) return PASCAL;
    return capability >= 50 ? MAXWELL : KEPLER;
}

/* FP32 lanes of a multiprocessor (CUDA Programming Guide, compute capabilities). */
static unsigned int cores_per_multiprocessor(const struct fg_card *card)
{
    const int capability = card->major * 10 + card->minor;
    if (capability < 50) return 192;
    return capability == 60 || (capability >= 70 && capability <= 80) ? 64 : 128;
}

unsigned int fg_link_version(const struct fg_card *card)
{
    enum { V2_2 = 3, V3_1 = 5, V4_0 = 6, V5_0 = 7 };
    return card->major >= 10 ? V5_0 : card->major == 9 ? V4_0 : card->major == 8 ? V3_1 : V2_2;
}

unsigned int fg_link_mb_per_s(const struct fg_card *card) { return card->major >= 10 ? 53125 : card->major == 9 ? 26562 : 25781; }

#define OF_CARD(symbol, type, value)                       \
    nvmlReturn_t symbol(nvmlDevice_t device, type *answer) \
    {                                                      \
        ANSWER_OF_CARD(device, answer);                    \
        *answer = value;                                   \
        return NVML_SUCCESS;                               \
    }
OF_CARD(nvmlDeviceGetArchitecture, unsigned int, architecture_of(fg_card(device)))
OF_CARD(nvmlDeviceGetNumGpuCores, unsigned int, (unsigned int)fg_card(device)->sm_count *cores_per_multiprocessor(fg_card(device)))
OF_CARD(nvmlDeviceGetMemoryBusWidth, unsigned int, 5120) /* an A100's */
OF_CARD(nvmlDeviceGetBoardId, unsigned int, fg_card(device)->pci_bus << 8)
OF_CARD(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
OF_CARD(nvmlDeviceGetBusType, unsigned int, 2)           /* PCIe */
OF_CARD(nvmlDeviceGetPcieSpeed, unsigned int, 16000)     /* generation 4 */
OF_CARD(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, 4)  /* likewise */
OF_CARD(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, 4)
OF_CARD(nvmlDeviceGetVirtualizationMode, int, 0) /* none */

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same)
{
    ANSWER_OF_CARD(device, same);
    const nvmlReturn_t result = fg_check(other);
    if (result == NVML_SUCCESS) *same = device == other;
    return result;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    enum { ROOM = 64 };
    ANSWER_OF_CARD(device, version);
    return fg_put_text(version, ROOM, fg_nvml.machine->driver_version);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *by_default)
{
    ANSWER_OF_CARD(device, enabled);
    if (by_default == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *enabled = *by_default = 1;
    return NVML_SUCCESS;
}

/* The monitor of a card's units, which cards before Hopper have not, and this machine has on none. */
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ANSWER(device, support);
    support->isSupportedDevice = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    unsigned int count = 0;
    char text[32];
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&count);
    if (result != NVML_SUCCESS) return result;
    if (serial == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < count; i++) {
        nvmlDevice_t each;
        if (nvmlDeviceGetHandleByIndex_v2(i, &each) != NVML_SUCCESS || nvmlDeviceGetSerial(each, text, sizeof text) != NVML_SUCCESS)
            continue;
        if (strcmp(text, serial) == 0) return *device = each, NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Of none of these has this machine one. */
#define NONE(symbol, parameters)                                      \
    nvmlReturn_t symbol parameters                                    \
    {                                                                 \
        if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED; \
        if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;        \
        *count = 0;                                                   \
        return NVML_SUCCESS;                                          \
    }
NONE(nvmlGetExcludedDeviceCount, (unsigned int *count))
NONE(nvmlUnitGetCount, (unsigned int *count))

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, void *versions)
{
    (void)versions;
    return nvmlUnitGetCount(count);
}
