/* Errors of a card and of its links in the stand-in NVML: counters that fakegpu-ctl sets, since nothing here goes wrong by itself. */
#include "nvml/nvml.h"

#include <string.h>

enum { CORRECTED, UNCORRECTED, SINCE_START = 0, LIFETIME };

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

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, int *mode)
{
    ANSWER_OF_CARD(device, mode);
    *mode = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *errors)
{
    ANSWER_OF_CARD(device, errors);
    if (type < CORRECTED || type > UNCORRECTED || counter < SINCE_START || counter > LIFETIME) return NVML_ERROR_INVALID_ARGUMENT;
    if (counter == SINCE_START) return fg_long_value(device, type == CORRECTED ? FG_VALUE_ecc_corrected : FG_VALUE_ecc_uncorrected, errors);
    return fg_long_value(device, type == CORRECTED ? FG_VALUE_ecc_corrected_lifetime : FG_VALUE_ecc_uncorrected_lifetime, errors);
}

/* All errors here are of the card's memory, none of its caches and registers. */
nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, int type, int counter, nvmlEccErrorCounts_t *counts)
{
    ANSWER_OF_CARD(device, counts);
    memset(counts, 0, sizeof *counts);
    return nvmlDeviceGetTotalEccErrors(device, type, counter, &counts->deviceMemory);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int type, int counter, int location, unsigned long long *errors)
{
    enum { DEVICE_MEMORY = 2, LOCATIONS = 8 };
    ANSWER_OF_CARD(device, errors);
    if (location < 0 || location >= LOCATIONS) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, type, counter, errors);
    if (result == NVML_SUCCESS && location != DEVICE_MEMORY) *errors = 0;
    return result;
}

/* Pages are numbered from the first of the card; when each was retired is not known. */
nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, int cause, unsigned int *count, unsigned long long *addresses,
                                          unsigned long long *times)
{
    enum { PAGE_BYTES = 4096 };
    unsigned int retired;
    ANSWER_OF_CARD(device, count);
    if (cause < CORRECTED || cause > UNCORRECTED) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result =
        fg_value(device, cause == CORRECTED ? FG_VALUE_retired_pages_corrected : FG_VALUE_retired_pages_uncorrected, &retired);
    if (result != NVML_SUCCESS) return result;
    const unsigned int room = addresses != NULL ? *count : 0;
    *count = retired;
    if (retired > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int page = 0; page < retired; page++) {
        addresses[page] = (unsigned long long)page * PAGE_BYTES;
        if (times != NULL) times[page] = 0;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned int *count, unsigned long long *addresses)
{
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int *pending)
{
    unsigned int pages;
    ANSWER_OF_CARD(device, pending);
    const nvmlReturn_t result = fg_value(device, FG_VALUE_retired_pages_pending, &pages);
    if (result == NVML_SUCCESS) *pending = pages > 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failed)
{
    ANSWER_OF_CARD(device, corrected);
    if (uncorrected == NULL || pending == NULL || failed == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = fg_value(device, FG_VALUE_remapped_rows_corrected, corrected);
    if (result == NVML_SUCCESS) result = fg_value(device, FG_VALUE_remapped_rows_uncorrected, uncorrected);
    if (result == NVML_SUCCESS) result = fg_value(device, FG_VALUE_remapped_rows_pending, pending);
    if (result == NVML_SUCCESS) result = fg_value(device, FG_VALUE_remapped_rows_failed, failed);
    if (result == NVML_SUCCESS) *pending = *pending > 0, *failed = *failed > 0;
    return result;
}

/* 640 banks, as an A100's 80 GB have; each remapped row is in a bank of its own, which has spare rows left. */
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    enum { BANKS = 640 };
    unsigned int corrected, uncorrected, pending, failed;
    ANSWER_OF_CARD(device, values);
    const nvmlReturn_t result = nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &pending, &failed);
    if (result != NVML_SUCCESS) return result;
    const unsigned long long rows = (unsigned long long)corrected + uncorrected;
    const unsigned int touched = rows > BANKS ? BANKS : (unsigned int)rows, none = failed > 0 && touched > 0;
    *values = (nvmlRowRemapperHistogramValues_t){.max = BANKS - touched, .high = touched - none, .none = none};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *replays)
{
    ANSWER_OF_CARD(device, replays);
    return fg_value(device, FG_VALUE_pcie_replays, replays);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, int counter, unsigned long long *errors)
{
    static const enum fg_value COUNTERS[] = {FG_VALUE_nvlink_replay_errors, FG_VALUE_nvlink_recovery_errors,
                                             FG_VALUE_nvlink_crc_flit_errors, FG_VALUE_nvlink_crc_data_errors};
    enum { OF_ECC = 4 };
    ANSWER_OF_CARD(device, errors);
    if (link >= FG_MAX_LINKS || counter < 0 || counter > OF_ECC) return NVML_ERROR_INVALID_ARGUMENT;
    if (link >= (unsigned int)fg_card(device)->link_count || counter == OF_ECC) return NVML_ERROR_NOT_SUPPORTED;
    return fg_long_value(device, COUNTERS[counter], errors);
}
