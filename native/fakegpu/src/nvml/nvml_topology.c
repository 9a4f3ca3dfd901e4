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

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int longs, unsigned long *cpus)
{
    ANSWER(device, cpus);
    if (longs == 0) return NVML_ERROR_INVALID_ARGUMENT;
    memset(cpus, 0, longs * sizeof *cpus);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF) && (unsigned long)cpu / 64 < longs; cpu++) cpus[cpu / 64] |= 1UL << (cpu % 64);
    return NVML_SUCCESS;
}

/* All processors are as near to one card as to another. */
nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int longs, unsigned long *cpus, int scope)
{
    return scope < 0 || scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(device, longs, cpus);
}

/* The protocol of lists: *count is the room on entry and the number on return. */
static nvmlReturn_t list_cards(nvmlDevice_t beside, int nearest, unsigned int *count, nvmlDevice_t *devices)
{
    unsigned int found = 0, listed = 0;
    const unsigned int room = devices != NULL ? *count : 0;
    nvmlReturn_t result = nvmlDeviceGetCount_v2(&listed);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < listed; i++) {
        nvmlDevice_t each;
        int level = 0;
        if (nvmlDeviceGetHandleByIndex_v2(i, &each) != NVML_SUCCESS || each == beside) continue; /* a lost card is near nobody */
        if (beside != NULL && nvmlDeviceGetTopologyCommonAncestor(beside, each, &level) != NVML_SUCCESS) continue;
        if (level > nearest) continue;
        if (found < room) devices[found] = each;
        found++;
    }
    *count = found;
    return result == NVML_SUCCESS && devices != NULL && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices)
{
    ANSWER(device, count);
    return level < 0 || level > 50 ? NVML_ERROR_INVALID_ARGUMENT : list_cards(device, level, count, devices);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (count == NULL || cpu >= (unsigned long)sysconf(_SC_NPROCESSORS_CONF)) return NVML_ERROR_INVALID_ARGUMENT;
    return list_cards(NULL, 0, count, devices);
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

/* Of a link that is there: success. */
static nvmlReturn_t check_link(nvmlDevice_t device, unsigned int link)
{
    if (link >= FG_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
    return link < (unsigned int)fg_card(device)->link_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    ANSWER(device, version);
    const nvmlReturn_t result = check_link(device, link);
    if (result == NVML_SUCCESS) *version = fg_link_version(fg_card(device));
    return result;
}

/* Between cards, with atomics; not to the host's memory. */
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, int capability, unsigned int *has)
{
    enum { BETWEEN_CARDS = 0, ATOMICS_BETWEEN_CARDS = 2, VALID = 5 };
    ANSWER(device, has);
    if (capability < BETWEEN_CARDS || capability > VALID) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = check_link(device, link);
    if (result == NVML_SUCCESS) *has = capability == BETWEEN_CARDS || capability == ATOMICS_BETWEEN_CARDS || capability == VALID;
    return result;
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
