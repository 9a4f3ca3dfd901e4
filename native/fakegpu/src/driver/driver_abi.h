/* The further part of the CUDA driver ABI that the stand-in driver answers, written from NVIDIA's public driver API documentation.
 *
 * What libvgpu touches too is in its cuda_abi.h, and there alone: what both declare would not compile. libvgpu does not see the rest, so
 * that all it includes is what it alters or asks. Names and values are NVIDIA's; nothing is copied from cuda.h. Sizes are asserted.
 */
#ifndef FAKEGPU_DRIVER_ABI_H
#define FAKEGPU_DRIVER_ABI_H

#include "cuda_abi.h"
#include "driver/copy_abi.h"

/* Results beyond those of cuda_abi.h, whose enumeration can't be continued. */
#define CUDA_ERROR_INVALID_SOURCE ((CUresult)300)
#define CUDA_ERROR_FILE_NOT_FOUND ((CUresult)301)
#define CUDA_ERROR_MAP_FAILED ((CUresult)205)
#define CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ((CUresult)217)
#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ((CUresult)704)
#define CUDA_ERROR_PEER_ACCESS_NOT_ENABLED ((CUresult)705)
#define CUDA_ERROR_CONTEXT_IS_DESTROYED ((CUresult)709)
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ((CUresult)712)
#define CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED ((CUresult)713)
#define CUDA_ERROR_INVALID_PTX ((CUresult)218)
#define CUDA_ERROR_OPERATING_SYSTEM ((CUresult)304)
#define CUDA_ERROR_ILLEGAL_STATE ((CUresult)401)
#define CUDA_ERROR_LOSSY_QUERY ((CUresult)402)
#define CUDA_ERROR_NOT_PERMITTED ((CUresult)800)
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ((CUresult)901)
#define CUDA_ERROR_STREAM_CAPTURE_MERGE ((CUresult)902)
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ((CUresult)903)
#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED ((CUresult)904)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION ((CUresult)905)
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ((CUresult)906)
#define CUDA_ERROR_CAPTURED_EVENT ((CUresult)907)
#define CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD ((CUresult)908)
#define CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE ((CUresult)910)
#define CUDA_ERROR_INVALID_CLUSTER_SIZE ((CUresult)912)
#define CUDA_ERROR_INVALID_RESOURCE_TYPE ((CUresult)914)
#define CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION ((CUresult)915)

typedef struct CUlinkState_st *CUlinkState;
typedef struct CUkern_st *CUkernel;
typedef struct CUuserObject_st *CUuserObject;
typedef struct CUextSemaphore_st *CUexternalSemaphore;
typedef struct CUgraphicsResource_st *CUgraphicsResource;
typedef struct CUtexref_st *CUtexref;
typedef struct CUsurfref_st *CUsurfref;
typedef unsigned long long CUtexObject, CUsurfObject, CUgraphConditionalHandle;
typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef struct CUlogsCallbackEntry_st *CUlogsCallbackHandle;
typedef void (*CUlogsCallback)(void *data, int level, char *message, size_t length);
typedef size_t (*CUoccupancyB2DSize)(int block_size);

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

typedef CUipcMemHandle_v1 CUipcMemHandle, CUipcEventHandle;

typedef union CUstreamBatchMemOpParams_union {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        cuuint64_t value;
        unsigned int flags;
        CUdeviceptr alias;
    } value;
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;
static_assert(sizeof(CUstreamBatchMemOpParams) == 48 && offsetof(CUstreamBatchMemOpParams, value.flags) == 24, "CUstreamBatchMemOpParams");
/* CUstreamBatchMemOpType */
enum {
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
    CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3,
    CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
    CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
    CU_STREAM_MEM_OP_BARRIER = 6
};
/* CUstreamWaitValue_flags: how memory and value are compared; the last may be added to either. */
enum {
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_WAIT_VALUE_EQ = 1,
    CU_STREAM_WAIT_VALUE_AND = 2,
    CU_STREAM_WAIT_VALUE_NOR = 3,
    CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30
};

typedef struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;
static_assert(sizeof(CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC) == 96, "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC");
/* Of signalling and of waiting: the value of the fence comes first in both. */
typedef struct CUDA_EXTERNAL_SEMAPHORE_PARAMS_st {
    unsigned long long fence_value;
    unsigned int rest[34];
} CUDA_EXTERNAL_SEMAPHORE_PARAMS;
static_assert(sizeof(CUDA_EXTERNAL_SEMAPHORE_PARAMS) == 144, "CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, ..._WAIT_PARAMS");
/* The value of an attribute of launches, streams and kernel nodes. */
typedef struct CUlaunchAttributeValue_st {
    char bytes[64];
} CUlaunchAttributeValue;
/* CUlaunchAttribute */
struct fg_launch_attribute {
    int id;
    char padding[4];
    CUlaunchAttributeValue value;
};
static_assert(sizeof(struct fg_launch_attribute) == 72, "CUlaunchAttribute");
enum { FG_LAUNCH_ATTRIBUTES = 32 }; /* more than CUlaunchAttributeID has */

/* Of green contexts: the multiprocessors that a context may use. */
typedef struct CUdevResource_st {
    int type;
    unsigned char internal[92];
    unsigned int smCount;
    unsigned char rest[44];
} CUdevResource;
static_assert(sizeof(CUdevResource) == 144 && offsetof(CUdevResource, smCount) == 96, "CUdevResource");
enum { CU_DEV_RESOURCE_TYPE_SM = 1 };

typedef struct CUexecAffinityParam_st {
    int type;
    unsigned int smCount;
} CUexecAffinityParam;

typedef struct CUdevprop_st {
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch, regsPerBlock,
        clockRate, textureAlign;
} CUdevprop;

#endif
