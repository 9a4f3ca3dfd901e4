/* Start-up and devices of the stand-in NVML. */
#include "nvml.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_abi.h"

enum { DEVICE_TAG = 0x46474456 };

struct fg_nvml fg_nvml;
static struct nvmlDevice_st handles[FG_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised; /* how often */

static nvmlReturn_t initialise(void)
{
    const struct fg_machine *machine = fg_machine();
    if (machine == NULL) return NVML_ERROR_DRIVER_NOT_LOADED;
    fg_nvml.state = fg_state(machine);
    if (fg_nvml.state == NULL) return NVML_ERROR_UNKNOWN;
    for (int i = 0; i < machine->visible_count; i++)
        handles[i] = (struct nvmlDevice_st){.tag = DEVICE_TAG, .index = (unsigned int)i, .card = machine->visible[i]};
    fg_nvml.machine = machine;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    pthread_mutex_lock(&lock);
    const nvmlReturn_t result = initialised > 0 ? NVML_SUCCESS : initialise();
    if (result == NVML_SUCCESS) initialised++;
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* "no GPUs is no error", which it never is here */
    return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    const nvmlReturn_t result = initialised > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialised > 0 && --initialised == 0) fg_nvml.machine = NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t error)
{
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

static nvmlReturn_t put_text(char *to, unsigned int length, const char *text)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (to == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    return put_text(text, length, fg_nvml.machine != NULL ? fg_nvml.machine->driver_version : "");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned int length)
{
    char version[96];
    snprintf(version, sizeof version, "%d.%s", fg_nvml.machine != NULL ? fg_nvml.machine->cuda_version / 1000 : 0,
             fg_nvml.machine != NULL ? fg_nvml.machine->driver_version : "");
    return put_text(text, length, version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    const struct fg_machine *machine = fg_machine(); /* answers before nvmlInit, as the real one does */
    if (version == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (machine == NULL) return NVML_ERROR_DRIVER_NOT_LOADED;
    *version = machine->cuda_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char link[64], target[PATH_MAX];
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (name == NULL || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(link, sizeof link, "/proc/%u/exe", pid - (unsigned int)fg_nvml.machine->pid_offset);
    const ssize_t size = readlink(link, target, sizeof target - 1);
    if (size < 0) return NVML_ERROR_NOT_FOUND;
    target[size] = '\0';
    snprintf(name, length, "%s", target);
    return NVML_SUCCESS;
}

nvmlReturn_t fg_check(nvmlDevice_t device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || device < handles || device >= handles + FG_MAX_DEVICES || device->tag != DEVICE_TAG)
        return NVML_ERROR_INVALID_ARGUMENT;
    return fg_nvml.state->cards[device->card].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlDevice_t fg_handle_of_card(int card)
{
    for (int i = 0; i < fg_nvml.machine->visible_count; i++)
        if (fg_nvml.machine->visible[i] == card) return &handles[i];
    return NULL;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)fg_nvml.machine->visible_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || index >= (unsigned int)fg_nvml.machine->visible_count) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = fg_check(&handles[index]);
    if (result == NVML_SUCCESS) *device = &handles[index];
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < fg_nvml.machine->visible_count; i++)
        if (strcmp(fg_card(&handles[i])->uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot;
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (id == NULL || device == NULL || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < fg_nvml.machine->visible_count; i++) {
        const struct fg_card *card = fg_card(&handles[i]);
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot)
            return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) { return nvmlDeviceGetHandleByPciBusId_v2(id, device); }

/* Opens the body of a function that answers from one device: refuses bad handles, lost cards and a NULL output. */
#define ANSWER(device, output)                                          \
    const nvmlReturn_t checked = fg_check(device);                      \
    if (checked != NVML_SUCCESS) return checked;                        \
    if ((output) == NULL) return NVML_ERROR_INVALID_ARGUMENT

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ANSWER(device, index);
    *index = device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ANSWER(device, uuid);
    return put_text(uuid, length, fg_card(device)->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ANSWER(device, name);
    return put_text(name, length, fg_card(device)->name);
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
    return put_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    ANSWER(device, minor);
    *minor = (unsigned int)device->card;
    return NVML_SUCCESS;
}

static void fill_pci(const struct fg_card *card, nvmlPciInfo_t *pci)
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

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ANSWER(device, pci);
    fill_pci(fg_card(device), pci);
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

static struct fg_card_state memory_of(nvmlDevice_t device)
{
    fg_lock(fg_nvml.state);
    fg_sweep(fg_nvml.state);
    const struct fg_card_state card = fg_nvml.state->cards[device->card];
    fg_unlock(fg_nvml.state);
    return card;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ANSWER(device, memory);
    const struct fg_card_state card = memory_of(device);
    *memory = (nvmlMemory_t){.total = card.total_bytes, .used = card.used_bytes, .free = card.total_bytes - card.used_bytes};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ANSWER(device, memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct fg_card_state card = memory_of(device);
    memory->total = card.total_bytes;
    memory->reserved = 0;
    memory->used = card.used_bytes;
    memory->free = card.total_bytes - card.used_bytes;
    return NVML_SUCCESS;
}

static unsigned int busy_percent(nvmlDevice_t device)
{
    fg_lock(fg_nvml.state);
    const unsigned int percent = fg_utilisation(fg_nvml.state->cards[device->card].busy);
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
    *celsius = 35 + busy_percent(device) * 45 / 100; /* idle to full load */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    ANSWER(device, milliwatts);
    *milliwatts = 60000 + busy_percent(device) * 3400; /* 60 W idle, 400 W at full load */
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

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ANSWER(device, current);
    if (pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_card(device)->major < 8) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ANSWER(device, count);
    *count = fg_card(device)->major < 8 ? 0 : 7;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ANSWER(device, mig);
    return index < 7 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ANSWER(device, is_mig);
    *is_mig = 0;
    return NVML_SUCCESS;
}

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
    fill_pci(&fg_nvml.machine->cards[peer], pci);
    return NVML_SUCCESS;
}
