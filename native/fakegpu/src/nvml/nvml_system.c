/* Start-up of the stand-in NVML, versions of the driver, and the handles of the devices. */
#include "nvml/nvml.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEVICE_TAG = 0x46474456 };

struct fg_nvml fg_nvml;
static struct nvmlDevice_st handles[FG_MAX_DEVICES];
struct nvmlDevice_st fg_mig_handles[FG_MAX_DEVICES][FG_MAX_MIG];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised; /* how often */
static int listed;      /* visible cards that were plugged in when NVML was initialised; it hears of no others */

static nvmlReturn_t initialise(void)
{
    const struct fg_machine *machine = fg_machine();
    if (machine == NULL) return NVML_ERROR_DRIVER_NOT_LOADED;
    const int fault = fg_fault(FG_CALL_NVML_INIT);
    if (fault != 0) return (nvmlReturn_t)fault;
    fg_nvml.state = fg_state(machine);
    if (fg_nvml.state == NULL) return NVML_ERROR_UNKNOWN;
    listed = 0;
    for (int i = 0; i < machine->visible_count; i++) {
        const int card = machine->visible[i];
        if (fg_nvml.state->cards[card].unplugged) continue;
        handles[listed] = (struct nvmlDevice_st){.tag = DEVICE_TAG, .index = (unsigned int)listed, .card = card};
        listed++;
    }
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
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

nvmlReturn_t fg_put_text(char *to, unsigned int length, const char *text)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (to == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    return fg_put_text(text, length, fg_nvml.machine != NULL ? fg_nvml.machine->driver_version : "");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned int length)
{
    char version[96];
    snprintf(version, sizeof version, "%d.%s", fg_nvml.machine != NULL ? fg_nvml.machine->cuda_version / 1000 : 0,
             fg_nvml.machine != NULL ? fg_nvml.machine->driver_version : "");
    return fg_put_text(text, length, version);
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

bool fg_is_mig(nvmlDevice_t device)
{
    return device >= &fg_mig_handles[0][0] && device <= &fg_mig_handles[FG_MAX_DEVICES - 1][FG_MAX_MIG - 1];
}

static bool mig_is_there(nvmlDevice_t device) { return fg_nvml.state->cards[device->card].mig.devices[device->mig - 1].live; }

nvmlReturn_t fg_check(nvmlDevice_t device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    const bool is_card = device >= handles && device < handles + FG_MAX_DEVICES;
    if (device == NULL || !(is_card || fg_is_mig(device)) || device->tag != DEVICE_TAG) return NVML_ERROR_INVALID_ARGUMENT;
    if (fg_nvml.state->cards[device->card].lost) return NVML_ERROR_GPU_IS_LOST;
    return is_card || mig_is_there(device) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlDevice_t fg_handle_of_card(int card)
{
    for (int i = 0; i < listed; i++)
        if (handles[i].card == card) return &handles[i];
    return NULL;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)listed;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || index >= (unsigned int)listed) return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = fg_check(&handles[index]);
    if (result == NVML_SUCCESS) *device = &handles[index];
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < listed; i++)
        if (strcmp(fg_card(&handles[i])->uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot;
    if (fg_nvml.machine == NULL) return NVML_ERROR_UNINITIALIZED;
    if (id == NULL || device == NULL || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < listed; i++) {
        const struct fg_card *card = fg_card(&handles[i]);
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot)
            return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) { return nvmlDeviceGetHandleByPciBusId_v2(id, device); }
