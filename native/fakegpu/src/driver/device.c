/* Start-up and devices of the stand-in driver. */
#include "driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fg_driver fg_driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static CUresult initialise(struct fg_driver *driver)
{
    driver->machine = fg_machine();
    if (driver->machine == NULL) return CUDA_ERROR_NO_DEVICE;
    const int fault = fg_fault(FG_CALL_INIT);
    if (fault != 0) return (CUresult)fault;
    driver->state = fg_state(driver->machine);
    if (driver->state == NULL) return CUDA_ERROR_UNKNOWN;
    fg_choose_devices(driver);
    if (driver->device_count == 0) return CUDA_ERROR_NO_DEVICE;
    for (int i = 0; i < driver->device_count; i++) {
        driver->primary[i] = (struct CUctx_st){.tag = FG_CONTEXT, .device = i, .primary = true};
        driver->pool[i] = (struct CUmemPoolHandle_st){
            .tag = FG_POOL, .device = i, .allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED, .place = {CU_MEM_LOCATION_TYPE_DEVICE, i}};
        driver->current_pool[i] = &driver->pool[i];
    }
    driver->initialised = true;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    const CUresult result = fg_driver.initialised ? CUDA_SUCCESS : initialise(&fg_driver);
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    const struct fg_machine *machine = fg_machine();
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = machine != NULL ? machine->cuda_version : 12080;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int error_row(CUresult error)
{
    for (int i = 0; i < (int)(sizeof errors / sizeof *errors); i++)
        if (errors[i].error == error) return i;
    return -1;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    const int row = error_row(error);
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = row >= 0 ? errors[row].text : NULL;
    return row >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    const int row = error_row(error);
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    *name = row >= 0 ? errors[row].name : NULL;
    return row >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fg_check_device(CUdevice device)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= fg_driver.device_count) return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

static const struct fg_card *card(CUdevice device) { return &fg_driver.machine->cards[fg_driver.card_of[device]]; }

int fg_multiprocessors(CUdevice device)
{
    const struct fg_instance *instance = &fg_driver.instance_of[device];
    return instance->uuid[0] != '\0' ? instance->sm_count : card(device)->sm_count;
}

CUresult cuDeviceGetCount(int *count)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = fg_driver.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    const CUresult result = fg_check_device(ordinal);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (name == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", card(device)->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = fg_multiprocessors(device); break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = card(device)->max_threads_per_sm; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = (int)card(device)->pci_bus; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = (int)card(device)->pci_device; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = (int)card(device)->pci_domain; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = card(device)->major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = card(device)->minor; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT: *value = FG_LOCALITY_DOMAINS; break;
    default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_instance *instance = &fg_driver.instance_of[device];
    *bytes = instance->uuid[0] != '\0' ? instance->memory_bytes : card(device)->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    fg_uuid_bytes(card(device)->uuid, uuid->bytes);
    return CUDA_SUCCESS;
}

/* The first version of the call names an instance's card, the second the instance itself. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    const CUresult result = cuDeviceGetUuid(uuid, device);
    if (result == CUDA_SUCCESS && fg_driver.instance_of[device].uuid[0] != '\0')
        fg_uuid_bytes(fg_driver.instance_of[device].uuid, uuid->bytes);
    return result;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (text == NULL || length < 13) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0", card(device)->pci_domain, card(device)->pci_bus, card(device)->pci_device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned int domain, bus, slot;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (device == NULL || text == NULL || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < fg_driver.device_count; i++)
        if (card(i)->pci_domain == domain && card(i)->pci_bus == bus && card(i)->pci_device == slot) return *device = i, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (major == NULL || minor == NULL) return CUDA_ERROR_INVALID_VALUE;
    *major = card(device)->major;
    *minor = card(device)->minor;
    return CUDA_SUCCESS;
}
