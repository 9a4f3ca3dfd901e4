/* Green contexts of the stand-in driver: contexts that have a part of a device's multiprocessors, so that their kernels take longer. */
#include <stdlib.h>
#include <string.h>

#include "driver/handle.h"
#include "context/context.h"
#include "context/green.h"

/* What a resource remembers of its device, in the part that is the driver's own. */
struct origin {
    uint64_t mark;
    int device;
};
static const uint64_t MARK = 0x4647475245454e31;

static void describe(CUdevResource *resource, CUdevice device, unsigned int multiprocessors)
{
    const struct origin origin = {MARK, device};
    memset(resource, 0, sizeof *resource);
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->smCount = multiprocessors;
    memcpy(resource->internal, &origin, sizeof origin);
}

static bool is_described(const CUdevResource *resource, struct origin *origin)
{
    memcpy(origin, resource->internal, sizeof *origin);
    return resource->type == CU_DEV_RESOURCE_TYPE_SM && origin->mark == MARK && resource->smCount > 0 &&
           resource->smCount <= (unsigned int)fg_multiprocessors(origin->device);
}

int fg_context_multiprocessors(const struct CUctx_st *context)
{
    return context->multiprocessors > 0 ? context->multiprocessors : fg_multiprocessors(context->device);
}

static CUresult check(const CUdevResource *resource, int type)
{
    if (resource == NULL) return CUDA_ERROR_INVALID_VALUE;
    return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type)
{
    CUresult result = fg_check_device(device);
    if (result == CUDA_SUCCESS) result = check(resource, type);
    if (result == CUDA_SUCCESS) describe(resource, device, (unsigned int)fg_multiprocessors(device));
    return result;
}

/* Groups are made of so many multiprocessors at least, and of multiples of so many, by compute capability (CUDA Driver API, Green
 * Contexts). */
static unsigned int group_size(CUdevice device, unsigned int least)
{
    const int major = fg_driver.machine->cards[fg_driver.card_of[device]].major;
    const unsigned int smallest = major >= 9 ? 8 : major >= 8 ? 4 : major == 7 ? 2 : 1, step = major >= 9 ? 8 : major >= 7 ? 2 : 1;
    const unsigned int size = least > smallest ? least : smallest;
    return (size + step - 1) / step * step;
}

/* Without `groups` only their number is found out. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *whole, CUdevResource *remaining,
                                     unsigned int flags, unsigned int least)
{
    enum { EVERY_FLAG = 3 };
    struct origin origin;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (count == NULL || whole == NULL || flags > EVERY_FLAG) return CUDA_ERROR_INVALID_VALUE;
    if (whole->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (!is_described(whole, &origin) || least > whole->smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    const unsigned int size = group_size(origin.device, least), most = whole->smCount / size;
    if (most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (groups != NULL && *count == 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned int made = groups == NULL || *count > most ? most : *count, left = whole->smCount - made * size;
    for (unsigned int i = 0; i < made && groups != NULL; i++) describe(&groups[i], origin.device, size);
    if (remaining != NULL && left > 0) describe(remaining, origin.device, left);
    if (remaining != NULL && left == 0) memset(remaining, 0, sizeof *remaining); /* type 0: none */
    *count = made;
    return CUDA_SUCCESS;
}

struct CUdevResourceDesc_st {
    int device, multiprocessors;
};

/* Descriptions are never given back: there is no call for that. */
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources, unsigned int count)
{
    struct origin first, other;
    unsigned int sum = 0;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (description == NULL || resources == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (resources[0].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    for (unsigned int i = 0; i < count; i++, sum += resources[i - 1].smCount)
        if (!is_described(&resources[i], i == 0 ? &first : &other) || (i > 0 && other.device != first.device))
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (sum > (unsigned int)fg_multiprocessors(first.device)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    CUdevResourceDesc made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUdevResourceDesc_st){first.device, (int)sum};
    *description = made;
    return CUDA_SUCCESS;
}

int fg_described_multiprocessors(CUdevResourceDesc description, CUdevice device)
{
    if (!fg_handle_lives(description)) return 0;
    return description->device == device ? description->multiprocessors : -1;
}

/* A green context holds its device's primary context, and costs as much as another. */
CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    enum { DEFAULT_STREAM = 1 };
    CUcontext primary, made;
    if (context == NULL || resources == NULL || flags != DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    const int multiprocessors = fg_described_multiprocessors(resources, device);
    if (multiprocessors == 0) return CUDA_ERROR_INVALID_VALUE;
    if (multiprocessors < 0) return CUDA_ERROR_INVALID_DEVICE;
    result = cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS) return result;
    result = cuCtxCreate_v2(&made, 0, device);
    if (result != CUDA_SUCCESS) {
        cuDevicePrimaryCtxRelease_v2(device);
        return result;
    }
    cuCtxPopCurrent_v2(NULL); /* it is not made current */
    made->green = true;
    made->multiprocessors = multiprocessors;
    *context = (CUgreenCtx)made;
    return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const CUcontext made = (CUcontext)green;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (made == NULL || made->tag != FG_CONTEXT || !made->green) return CUDA_ERROR_INVALID_CONTEXT;
    *context = made;
    return CUDA_SUCCESS;
}

/* Where it is current it stays so, and its memory lives on with the primary context (H100). */
CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
    CUcontext made;
    const CUresult result = cuCtxFromGreenCtx(&made, context);
    if (result != CUDA_SUCCESS) return result;
    const CUdevice device = made->device;
    fg_pass_context_memory(made, &fg_driver.primary[device]);
    fg_end_context(made);
    return cuDevicePrimaryCtxRelease_v2(device);
}
