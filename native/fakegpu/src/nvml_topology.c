/* Where a device of the stand-in NVML sits: NUMA, affinity, and links to the other devices. */
#include "nvml.h"

#include <string.h>
#include <unistd.h>

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    ANSWER(device, node);
    if (fg_card(device)->numa < 0) return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned int)fg_card(device)->numa;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes, int scope)
{
    ANSWER(device, nodes);
    const int node = fg_card(device)->numa;
    if (words == 0 || scope < 0 || scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
    if (node < 0) return NVML_ERROR_NOT_SUPPORTED;
    memset(nodes, 0, words * sizeof *nodes);
    if ((unsigned int)node / 64 < words) nodes[node / 64] = 1UL << (node % 64);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus)
{
    ANSWER(device, cpus);
    if (words == 0) return NVML_ERROR_INVALID_ARGUMENT;
    memset(cpus, 0, words * sizeof *cpus);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF) && (unsigned long)cpu / 64 < words; cpu++)
        cpus[cpu / 64] |= 1UL << (cpu % 64);
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

/* Whether one of the card's links goes to that peer. */
static bool linked(const struct fg_card *card, int peer)
{
    for (int i = 0; i < card->link_count; i++)
        if (card->link_peer[i] == peer) return true;
    return false;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, int capability, int *status)
{
    enum { READ, WRITE, NVLINK, ATOMICS, PCI, OK = 0, NOT_SUPPORTED = 5 };
    ANSWER(device, status);
    const nvmlReturn_t result = fg_check(other);
    if (result != NVML_SUCCESS) return result;
    if (capability < READ || capability > PCI || device == other) return NVML_ERROR_INVALID_ARGUMENT;
    const bool has_link = linked(fg_card(device), other->card);
    *status = (capability == NVLINK || capability == ATOMICS) && !has_link ? NOT_SUPPORTED : OK;
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
