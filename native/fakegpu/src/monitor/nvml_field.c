/* Fields of a device by number in the stand-in NVML (nvmlDeviceGetFieldValues): what exporters ask for in one call. */
#include "nvml/nvml.h"

enum { COUNT = 269 /* fields of driver 570 */, OLD_LINKS = 6, NUMBERED_LINKS = 12 };
static const unsigned int EVERY_LINK = UINT32_MAX;

/* Fields that are one quantity of the card. */
static const struct {
    unsigned int field;
    enum fg_value value;
} OF_CARD[] = {
    {3, FG_VALUE_ecc_corrected},
    {4, FG_VALUE_ecc_uncorrected},
    {5, FG_VALUE_ecc_corrected_lifetime},
    {6, FG_VALUE_ecc_uncorrected_lifetime},
    {11, FG_VALUE_ecc_corrected}, /* of device memory, where all are */
    {12, FG_VALUE_ecc_uncorrected},
    {22, FG_VALUE_ecc_corrected_lifetime},
    {23, FG_VALUE_ecc_uncorrected_lifetime},
    {29, FG_VALUE_retired_pages_corrected},
    {30, FG_VALUE_retired_pages_uncorrected},
    {31, FG_VALUE_retired_pages_pending},
    {74, FG_VALUE_power_throttled_ns},
    {75, FG_VALUE_thermal_throttled_ns},
    {82, FG_VALUE_memory_temperature_c},
    {94, FG_VALUE_pcie_replays},
    {142, FG_VALUE_remapped_rows_corrected},
    {143, FG_VALUE_remapped_rows_uncorrected},
    {144, FG_VALUE_remapped_rows_pending},
    {145, FG_VALUE_remapped_rows_failed},
};

/* Fields that count on links: one for each of the first six, one for their sum, and one for each of the next six. */
static const struct {
    unsigned int first, total, seventh;
    enum fg_value value;
} OF_LINKS[] = {
    {32, 38, 96, FG_VALUE_nvlink_crc_flit_errors},
    {39, 45, 102, FG_VALUE_nvlink_crc_data_errors},
    {46, 52, 108, FG_VALUE_nvlink_replay_errors},
    {53, 59, 114, FG_VALUE_nvlink_recovery_errors},
};

static nvmlReturn_t put_long(nvmlFieldValue_t *field, unsigned long long value)
{
    field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t put(nvmlFieldValue_t *field, unsigned int value)
{
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    field->value = (nvmlValue_t){.uiVal = value};
    return NVML_SUCCESS;
}

/* A counter of one link, or of all. */
static nvmlReturn_t put_of_links(nvmlDevice_t device, nvmlFieldValue_t *field, enum fg_value value, unsigned int link)
{
    unsigned long long each;
    const unsigned int links = (unsigned int)fg_card(device)->link_count;
    if (links == 0 || (link != EVERY_LINK && link >= links)) return NVML_ERROR_NOT_SUPPORTED;
    const nvmlReturn_t result = fg_long_value(device, value, &each);
    return result != NVML_SUCCESS ? result : put_long(field, link == EVERY_LINK ? each * links : each);
}

static nvmlReturn_t errors_of_links(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    const unsigned int id = field->fieldId;
    for (unsigned int i = 0; i < sizeof OF_LINKS / sizeof *OF_LINKS; i++) {
        if (id >= OF_LINKS[i].first && id < OF_LINKS[i].first + OLD_LINKS)
            return put_of_links(device, field, OF_LINKS[i].value, id - OF_LINKS[i].first);
        if (id >= OF_LINKS[i].seventh && id < OF_LINKS[i].seventh + NUMBERED_LINKS - OLD_LINKS)
            return put_of_links(device, field, OF_LINKS[i].value, OLD_LINKS + id - OF_LINKS[i].seventh);
        if (id == OF_LINKS[i].total) return put_of_links(device, field, OF_LINKS[i].value, EVERY_LINK);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Fields of the link that the scope names by its number. */
static nvmlReturn_t of_link(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    const struct fg_card *card = fg_card(device);
    const unsigned int link = field->scopeId, links = (unsigned int)card->link_count;
    switch (field->fieldId) {
    case 91: return put(field, links);
    case 90: return links == 0 ? NVML_ERROR_NOT_SUPPORTED : put(field, fg_link_mb_per_s(card));
    case 138:
    case 140: return put_of_links(device, field, FG_VALUE_nvlink_tx_kib, link);
    case 139:
    case 141: return put_of_links(device, field, FG_VALUE_nvlink_rx_kib, link);
    case 161: return put_of_links(device, field, FG_VALUE_nvlink_replay_errors, link);
    case 162: return put_of_links(device, field, FG_VALUE_nvlink_recovery_errors, link);
    case 163: return put_of_links(device, field, FG_VALUE_nvlink_crc_flit_errors, link);
    case 164: return link >= links ? NVML_ERROR_NOT_SUPPORTED : put(field, fg_link_mb_per_s(card));
    case 165: return links == 0 || link >= FG_MAX_LINKS ? NVML_ERROR_NOT_SUPPORTED : put(field, link < links);
    case 166: return link >= links ? NVML_ERROR_NOT_SUPPORTED : put(field, fg_link_version(card));
    default: break;
    }
    if (field->fieldId >= 84 && field->fieldId < 84 + OLD_LINKS)
        return field->fieldId - 84 >= links ? NVML_ERROR_NOT_SUPPORTED : put(field, fg_link_mb_per_s(card));
    if (field->fieldId >= 132 && field->fieldId <= 137)
        return field->fieldId - 126 >= links ? NVML_ERROR_NOT_SUPPORTED : put(field, fg_link_mb_per_s(card));
    return errors_of_links(device, field);
}

static nvmlReturn_t of_power(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned int milliwatts = 0, most = 0;
    nvmlReturn_t result;
    switch (field->fieldId) {
    case 83:
    case 191: return put_long(field, fg_energy_mj(device));
    case 185: /* the average of a second, which the model of power does not distinguish from now */
    case 186: result = nvmlDeviceGetPowerUsage(device, &milliwatts); break;
    case 187: result = nvmlDeviceGetPowerManagementLimitConstraints(device, &milliwatts, &most); break;
    case 188: result = nvmlDeviceGetPowerManagementLimitConstraints(device, &most, &milliwatts); break;
    case 189: result = nvmlDeviceGetPowerManagementDefaultLimit(device, &milliwatts); break;
    case 190: result = nvmlDeviceGetEnforcedPowerLimit(device, &milliwatts); break;
    case 192: result = nvmlDeviceGetPowerManagementLimit(device, &milliwatts); break;
    default: return NVML_ERROR_NOT_FOUND;
    }
    return result != NVML_SUCCESS ? result : put(field, milliwatts);
}

static nvmlReturn_t field_of(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned long long value;
    if (field->fieldId == 0 || field->fieldId >= COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (field->fieldId == 1 || field->fieldId == 2) return put(field, 1); /* ECC is on, and stays so */
    for (unsigned int i = 0; i < sizeof OF_CARD / sizeof *OF_CARD; i++) {
        if (OF_CARD[i].field != field->fieldId) continue;
        const nvmlReturn_t result = fg_long_value(device, OF_CARD[i].value, &value);
        return result != NVML_SUCCESS ? result : put_long(field, value);
    }
    nvmlReturn_t result = of_power(device, field);
    if (result == NVML_ERROR_NOT_FOUND) result = of_link(device, field);
    return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    ANSWER_OF_CARD(device, fields);
    if (count < 1) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (fg_nvml.state->since_1970_ns + fg_now_ns()) / 1000;
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = field_of(device, &fields[i]);
    }
    return NVML_SUCCESS;
}
