/* Where a device of the stand-in NVML sits: NUMA, affinity, and links to the other devices. */
#include "nvml/nvml.h"

#include <string.h>
#include <unistd.h>

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    ANSWER(device, node);
    if (fg_card(device)->numa < 0) return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned int)fg_card(device)->numa;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int longs, unsigned long *nodes, int scope)
{
    ANSWER(device, nodes);
    const int node = fg_card(device)->numa;
    if (longs == 0 || scope < 0 || scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
    if (node < 0) return NVML_ERROR_NOT_SUPPORTED;
    memset(nodes, 0, longs * sizeof *nodes);
    if ((unsigned int)node / 64 < longs) nodes[node / 64] = 1UL << (node % 64);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, int *level)
{
    enum { INTERNAL = 0, NODE = 40, SYSTEM = 50 };
    ANSWER(device, level);
    const nvmlReturn_t result = fg_check(other);
    if (result != NVML_SUCCESS) return result;
    *level = device == other ? INTERNAL : fg_card(device)->numa == fg_card(other)->numa ? NODE : SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    ANSWER(device, active);
    if (link >= FG_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_card(device)->link_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    *active = link < (unsigned int)fg_card(device)->link_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ANSWER(device, pci);
    if (link >= (unsigned int)fg_card(device)->link_count) return NVML_ERROR_INVALID_ARGUMENT;
    const int peer = fg_card(device)->link_peer[link];
    if (peer < 0 || peer >= fg_nvml.machine->card_count) return NVML_ERROR_NOT_FOUND;
    fg_fill_pci(&fg_nvml.machine->cards[peer], pci);
    return NVML_SUCCESS;
}

/* Of a link that is there: success. */
static nvmlReturn_t check_link(nvmlDevice_t device, unsigned int link)
{
    if (link >= FG_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    return link < (unsigned int)fg_card(device)->link_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *type)
{
    enum { GPU = 0, UNKNOWN = 0xFF };
    ANSWER(device, type);
    const nvmlReturn_t result = check_link(device, link);
    if (result != NVML_SUCCESS) return result;
    const int peer = fg_card(device)->link_peer[link];
    *type = peer >= 0 && peer < fg_nvml.machine->card_count ? GPU : UNKNOWN;
    return NVML_SUCCESS;
}
