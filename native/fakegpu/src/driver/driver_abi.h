/* The further part of the CUDA driver ABI that the stand-in driver answers, written from NVIDIA's public driver API documentation.
 *
 * What libvgpu touches too is in its cuda_abi.h, and there alone: what both declare would not compile. libvgpu does not see the rest, so
 * that all it includes is what it alters or asks. Names and values are NVIDIA's; nothing is copied from cuda.h. Sizes are asserted.
 */
#ifndef FAKEGPU_DRIVER_ABI_H
#define FAKEGPU_DRIVER_ABI_H

#include "cuda_abi.h"

/* Results beyond those of cuda_abi.h, whose enumeration can't be continued. */
#define CUDA_ERROR_INVALID_SOURCE ((CUresult)300)
#define CUDA_ERROR_FILE_NOT_FOUND ((CUresult)301)
#define CUDA_ERROR_MAP_FAILED ((CUresult)205)
#define CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ((CUresult)217)
#define CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ((CUresult)704)
#define CUDA_ERROR_PEER_ACCESS_NOT_ENABLED ((CUresult)705)
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
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
};

/* CUmemorytype */
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };

typedef struct CUDA_MEMCPY2D_st {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;
static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D (v2)");

/* The copy between contexts has a context in the place of either reserved pointer. */
typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *srcContext;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *dstContext;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER;
static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D (v2)");

typedef struct CUmemcpyAttributes_st {
    int srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;
static_assert(sizeof(CUmemcpyAttributes) == 24, "CUmemcpyAttributes");

enum { CU_MEMCPY_OPERAND_TYPE_POINTER = 1, CU_MEMCPY_OPERAND_TYPE_ARRAY = 2 };
typedef struct CUmemcpy3DOperand_st {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    } op;
} CUmemcpy3DOperand;
static_assert(sizeof(CUmemcpy3DOperand) == 40, "CUmemcpy3DOperand");

typedef struct CUDA_MEMCPY3D_BATCH_OP_st {
    CUmemcpy3DOperand src, dst;
    size_t width, height, depth;
    int srcAccessOrder;
    unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;
static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "CUDA_MEMCPY3D_BATCH_OP");

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

/* CUresourcetype */
enum { CU_RESOURCE_TYPE_ARRAY = 0, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1, CU_RESOURCE_TYPE_LINEAR = 2, CU_RESOURCE_TYPE_PITCH2D = 3 };
typedef struct CUDA_RESOURCE_DESC_st {
    int resType;
    union {
        CUarray array;
        CUmipmappedArray mipmap;
        struct {
            CUdeviceptr devPtr;
            int format;
            unsigned int numChannels;
            size_t sizeInBytes;
        } linear;
        struct {
            CUdeviceptr devPtr;
            int format;
            unsigned int numChannels;
            size_t width, height, pitchInBytes;
        } pitch2D;
        int reserved[32];
    } res;
    unsigned int flags;
} CUDA_RESOURCE_DESC;
static_assert(sizeof(CUDA_RESOURCE_DESC) == 144, "CUDA_RESOURCE_DESC");
typedef struct CUDA_TEXTURE_DESC_st {
    int addressMode[3], filterMode;
    unsigned int rest[22];
} CUDA_TEXTURE_DESC;
static_assert(sizeof(CUDA_TEXTURE_DESC) == 104, "CUDA_TEXTURE_DESC");
typedef struct CUDA_RESOURCE_VIEW_DESC_st {
    int format;
    size_t width, height, depth;
    unsigned int rest[20];
} CUDA_RESOURCE_VIEW_DESC;
static_assert(sizeof(CUDA_RESOURCE_VIEW_DESC) == 112, "CUDA_RESOURCE_VIEW_DESC");

typedef struct CUDA_ARRAY_SPARSE_PROPERTIES_st {
    unsigned int tileWidth, tileHeight, tileDepth, miptailFirstLevel;
    unsigned long long miptailSize;
    unsigned int flags, reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;
static_assert(sizeof(CUDA_ARRAY_SPARSE_PROPERTIES) == 48, "CUDA_ARRAY_SPARSE_PROPERTIES");
typedef struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st {
    size_t size, alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;
static_assert(sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS) == 32, "CUDA_ARRAY_MEMORY_REQUIREMENTS");
typedef struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_st {
    unsigned long long offset;
    CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
    unsigned int numLevels, reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;
static_assert(sizeof(CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC) == 120, "CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC");

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
typedef struct CUDA_EXT_SEM_NODE_PARAMS_st {
    CUexternalSemaphore *extSemArray;
    const CUDA_EXTERNAL_SEMAPHORE_PARAMS *paramsArray;
    unsigned int numExtSems;
} CUDA_EXT_SEM_NODE_PARAMS;
static_assert(sizeof(CUDA_EXT_SEM_NODE_PARAMS) == 24, "CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, ..._WAIT_NODE_PARAMS");

typedef struct CUDA_MEMSET_NODE_PARAMS_st {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "CUDA_MEMSET_NODE_PARAMS");
typedef struct CUDA_HOST_NODE_PARAMS_st {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;
typedef struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st {
    CUcontext ctx;
    unsigned int count;
    CUstreamBatchMemOpParams *paramArray;
    unsigned int flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;
static_assert(sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS) == 32, "CUDA_BATCH_MEM_OP_NODE_PARAMS");

/* CUgraphNodeType, beyond those of cuda_abi.h */
enum {
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13
};

/* What a general node carries, by its type (CUgraphNodeParams of cuda_abi.h, from its offset 16 on). */
union fg_general_params {
    CUDA_KERNEL_NODE_PARAMS kernel;
    struct {
        int flags, reserved;
        CUcontext context;
        CUDA_MEMCPY3D copy;
    } memcpy;
    struct {
        CUDA_MEMSET_NODE_PARAMS fill;
        CUcontext context;
    } memset;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph graph;
    CUevent event;
    CUDA_EXT_SEM_NODE_PARAMS semaphores;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr free_pointer;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
};
static_assert(sizeof(union fg_general_params) <= 232, "CUgraphNodeParams");

typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
typedef struct CUgraphExecUpdateResultInfo_st {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
static_assert(sizeof(CUgraphExecUpdateResultInfo) == 24, "CUgraphExecUpdateResultInfo");
/* CUgraphExecUpdateResult */
enum {
    CU_GRAPH_EXEC_UPDATE_SUCCESS = 0,
    CU_GRAPH_EXEC_UPDATE_ERROR = 1,
    CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3,
    CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED = 5,
    CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED = 6,
    CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7,
    CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED = 8
};
/* CUgraphInstantiateResult */
enum { CUDA_GRAPH_INSTANTIATE_SUCCESS = 0, CUDA_GRAPH_INSTANTIATE_ERROR = 1, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE = 2 };

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
