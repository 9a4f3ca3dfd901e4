/* Texture and surface objects of the stand-in driver: checked, kept and shown. No kernel samples them, as none runs. */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "copy/array.h"
#include "memory/block.h"

struct object {
    unsigned long long handle;
    bool is_surface, has_view;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *objects; /* a search tree by handle, under `lock` */

static int by_handle(const void *a, const void *b)
{
    const unsigned long long x = ((const struct object *)a)->handle, y = ((const struct object *)b)->handle;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* cuDeviceGetAttribute: TEXTURE_ALIGNMENT, TEXTURE_PITCH_ALIGNMENT. */
enum { TEXTURE_ALIGNMENT = 512, PITCH_ALIGNMENT = 32 };

static bool memory_ok(CUdeviceptr at, size_t bytes)
{
    struct fg_block block;
    return at % TEXTURE_ALIGNMENT == 0 && bytes > 0 && fg_find_block(at, &block) && bytes <= block.base + block.bytes - at;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *resource)
{
    static const uint64_t MOST_TEXELS = UINT64_C(1) << 28;
    const uint64_t linear = fg_element_bytes(resource->res.linear.format, resource->res.linear.numChannels);
    const uint64_t pitched = fg_element_bytes(resource->res.pitch2D.format, resource->res.pitch2D.numChannels);
    size_t bytes;
    bool ok = false;
    if (resource->flags != 0) return CUDA_ERROR_INVALID_VALUE;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY: return fg_array_ok(resource->res.array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return resource->res.mipmap != NULL && fg_array_ok(&resource->res.mipmap->array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
        ok = linear > 0 && resource->res.linear.sizeInBytes / linear <= MOST_TEXELS &&
             memory_ok(resource->res.linear.devPtr, resource->res.linear.sizeInBytes);
        break;
    case CU_RESOURCE_TYPE_PITCH2D:
        ok = pitched > 0 && resource->res.pitch2D.width > 0 && resource->res.pitch2D.pitchInBytes % PITCH_ALIGNMENT == 0 &&
             resource->res.pitch2D.pitchInBytes / pitched >= resource->res.pitch2D.width &&
             !__builtin_mul_overflow(resource->res.pitch2D.pitchInBytes, resource->res.pitch2D.height, &bytes) &&
             memory_ok(resource->res.pitch2D.devPtr, bytes);
        break;
    default: break;
    }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool texture_ok(const CUDA_TEXTURE_DESC *texture)
{
    enum { LAST_ADDRESS_MODE = 3, LAST_FILTER_MODE = 1 };
    for (int i = 0; i < 3; i++)
        if (texture->addressMode[i] < 0 || texture->addressMode[i] > LAST_ADDRESS_MODE) return false;
    return texture->filterMode >= 0 && texture->filterMode <= LAST_FILTER_MODE;
}

static CUresult keep(const struct object *wanted, unsigned long long *handle)
{
    static unsigned long long last;
    struct object *made = malloc(sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = *wanted;
    pthread_mutex_lock(&lock);
    made->handle = ++last;
    const bool kept = tsearch(made, &objects, by_handle) != NULL;
    pthread_mutex_unlock(&lock);
    if (!kept) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    *handle = made->handle;
    return CUDA_SUCCESS;
}

/* A copy of the object; false: there is none of that kind. */
static bool find(unsigned long long handle, bool is_surface, struct object *found)
{
    const struct object probe = {.handle = handle};
    pthread_mutex_lock(&lock);
    struct object **place = tfind(&probe, &objects, by_handle);
    const bool known = place != NULL && (*place)->is_surface == is_surface;
    if (known) *found = **place;
    pthread_mutex_unlock(&lock);
    return known;
}

static CUresult destroy(unsigned long long handle, bool is_surface)
{
    struct object known;
    if (!find(handle, is_surface, &known)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct object **place = tfind(&known, &objects, by_handle), *object = place != NULL ? *place : NULL;
    if (object != NULL) tdelete(object, &objects, by_handle);
    pthread_mutex_unlock(&lock);
    free(object);
    return object != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A view shows an array otherwise than it was made; memory has none. */
CUresult cuTexObjectCreate(CUtexObject *object, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                           const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (object == NULL || resource == NULL || texture == NULL || !texture_ok(texture)) return CUDA_ERROR_INVALID_VALUE;
    if (view != NULL && resource->resType != CU_RESOURCE_TYPE_ARRAY && resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_resource(resource);
    if (result != CUDA_SUCCESS) return result;
    struct object wanted = {.resource = *resource, .texture = *texture, .has_view = view != NULL};
    if (view != NULL) wanted.view = *view;
    return keep(&wanted, object);
}

CUresult cuTexObjectDestroy(CUtexObject object) { return destroy(object, false); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject handle)
{
    struct object object;
    if (resource == NULL || !find(handle, false, &object)) return CUDA_ERROR_INVALID_VALUE;
    *resource = object.resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *texture, CUtexObject handle)
{
    struct object object;
    if (texture == NULL || !find(handle, false, &object)) return CUDA_ERROR_INVALID_VALUE;
    *texture = object.texture;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle)
{
    struct object object;
    if (view == NULL || !find(handle, false, &object) || !object.has_view) return CUDA_ERROR_INVALID_VALUE;
    *view = object.view;
    return CUDA_SUCCESS;
}

/* Surfaces are arrays that were made to be written. */
CUresult cuSurfObjectCreate(CUsurfObject *object, const CUDA_RESOURCE_DESC *resource)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (object == NULL || resource == NULL || resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    result = check_resource(resource);
    if (result != CUDA_SUCCESS) return result;
    if ((resource->res.array->as.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) return CUDA_ERROR_INVALID_VALUE;
    const struct object wanted = {.is_surface = true, .resource = *resource};
    return keep(&wanted, object);
}

CUresult cuSurfObjectDestroy(CUsurfObject object) { return destroy(object, true); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject handle)
{
    struct object object;
    if (resource == NULL || !find(handle, true, &object)) return CUDA_ERROR_INVALID_VALUE;
    *resource = object.resource;
    return CUDA_SUCCESS;
}
