/* The further part of the CUDA driver ABI that the stand-in driver answers, written from NVIDIA's public driver API documentation.
 *
 * What libvgpu touches too is in its cuda_abi.h, and there alone: what both declare would not compile. libvgpu does not see the rest, so
 * that all it includes is what it alters or asks. Names and values are NVIDIA's; nothing is copied from cuda.h. Sizes are asserted.
 */
#ifndef FAKEGPU_DRIVER_ABI_H
#define FAKEGPU_DRIVER_ABI_H

#include "cuda_abi.h"

/* Results beyond those of cuda_abi.h, whose enumeration can't be continued. */
#define CUDA_ERROR_FILE_NOT_FOUND ((CUresult)301)
#define CUDA_ERROR_MAP_FAILED ((CUresult)205)
#define CUDA_ERROR_CONTEXT_IS_DESTROYED ((CUresult)709)
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ((CUresult)712)
#define CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED ((CUresult)713)
#define CUDA_ERROR_INVALID_PTX ((CUresult)218)
#define CUDA_ERROR_ILLEGAL_STATE ((CUresult)401)
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ((CUresult)901)
#define CUDA_ERROR_STREAM_CAPTURE_MERGE ((CUresult)902)
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ((CUresult)903)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION ((CUresult)905)
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ((CUresult)906)
#define CUDA_ERROR_CAPTURED_EVENT ((CUresult)907)
#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD ((CUresult)908)
#define CUDA_ERROR_INVALID_RESOURCE_TYPE ((CUresult)914)
#define CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION ((CUresult)915)

typedef struct CUkern_st *CUkernel;

/* CUdevice_attribute: the ones that device.c answers. */
enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT = 149
};

typedef CUipcMemHandle_v1 CUipcMemHandle;

/* CUmemorytype */
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
/* CUresourcetype */
enum { CU_RESOURCE_TYPE_ARRAY = 0, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1 };
typedef struct CUDA_ARRAY_SPARSE_PROPERTIES_st {
    unsigned int tileWidth, tileHeight, tileDepth, miptailFirstLevel;
    unsigned long long miptailSize;
    unsigned int flags, reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;
static_assert(sizeof(CUDA_ARRAY_SPARSE_PROPERTIES) == 48, "CUDA_ARRAY_SPARSE_PROPERTIES");

/* Of green contexts: the multiprocessors that a context may use. */
typedef struct CUdevResource_st {
    int type;
    unsigned char internal[92];
    unsigned int smCount;
    unsigned char rest[44];
} CUdevResource;
static_assert(sizeof(CUdevResource) == 144 && offsetof(CUdevResource, smCount) == 96, "CUdevResource");
enum { CU_DEV_RESOURCE_TYPE_SM = 1 };

/* CUgraphNodeType, beyond those of cuda_abi.h */
enum { CU_GRAPH_NODE_TYPE_EMPTY = 5 };

/* What a general node carries, by its type (CUgraphNodeParams of cuda_abi.h, from its offset 16 on). */
union fg_general_params {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraph graph;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr free_pointer;
};
static_assert(sizeof(union fg_general_params) <= 232, "CUgraphNodeParams");

typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
/* CUgraphInstantiateResult */
enum { CUDA_GRAPH_INSTANTIATE_SUCCESS = 0, CUDA_GRAPH_INSTANTIATE_ERROR = 1 };

#endif
