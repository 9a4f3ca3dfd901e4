/* Host functions, and values in memory that streams write and wait for, in the stand-in driver. */
#include <stdlib.h>

#include "memory/block.h"
#include "capture/capture.h"
#include "copy/copy.h"
#include "stream/deferred.h"

struct host_call {
    CUstream stream;
    CUhostFn function;
    CUstreamCallback callback;
    void *data;
};

static void call_host(void *data)
{
    const struct host_call call = *(struct host_call *)data;
    free(data);
    if (call.function != NULL)
        call.function(call.data);
    else
        call.callback(call.stream, CUDA_SUCCESS, call.data);
}

static CUresult queue_call(CUstream stream, const struct host_call *call)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    struct host_call *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *call;
    return fg_defer(context, stream, NULL, call_host, kept) != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    CUresult result;
    const struct host_call call = {.stream = stream, .function = function, .data = data};
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return fg_capture_host(stream, function, data, &result) ? result : queue_call(stream, &call);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    const struct host_call call = {.stream = stream, .callback = callback, .data = data};
    if (callback == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return fg_capture_broken(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : queue_call(stream, &call);
}

struct value {
    CUdeviceptr at;
    cuuint64_t value;
    unsigned int flags;
    bool wide;
};

static bool is_there(void *data)
{
    const struct value *wanted = data;
    const void *at = (const void *)(uintptr_t)wanted->at;
    const cuuint64_t now = wanted->wide ? *(const volatile uint64_t *)at : *(const volatile uint32_t *)at;
    switch (wanted->flags & 3) {
    /* Cyclic: the difference, as a signed number of that width, is not negative. */
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wanted->wide ? (int64_t)(now - wanted->value) >= 0 : (int32_t)(uint32_t)(now - wanted->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == wanted->value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & wanted->value) != 0;
    default: return (wanted->wide ? ~(now | wanted->value) : (uint32_t)~(now | wanted->value)) != 0;
    }
}

static void write_value(void *data)
{
    const struct value *wanted = data;
    void *at = (void *)(uintptr_t)wanted->at;
    if (wanted->wide)
        __atomic_store_n((uint64_t *)at, wanted->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)at, (uint32_t)wanted->value, __ATOMIC_RELEASE);
    free(data);
}

static CUresult check_value(const CUstreamBatchMemOpParams *op)
{
    enum { NO_MEMORY_BARRIER = 1 };
    CUdeviceptr base;
    size_t bytes, unit = 4;
    unsigned int flags = NO_MEMORY_BARRIER;
    switch (op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: unit = 8; /* fall through */
    case CU_STREAM_MEM_OP_WAIT_VALUE_32: flags = 3U | CU_STREAM_WAIT_VALUE_FLUSH; break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: unit = 8; break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32: break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER: return CUDA_SUCCESS; /* memory is seen by all at once */
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    const CUdeviceptr at = op->value.address;
    if (at == 0 || at % unit != 0 || (op->value.flags & ~flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return fg_touch(at, unit) || fg_is_host_memory(at, &base, &bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fg_check_values(unsigned int count, const CUstreamBatchMemOpParams *wanted, unsigned int flags)
{
    enum { MOST = 256 };
    CUresult result = wanted == NULL || count == 0 || count > MOST || flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) result = check_value(&wanted[i]);
    return result;
}

static CUresult queue_value(CUcontext context, CUstream stream, const struct value *value, bool wait)
{
    struct value *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *value;
    const uint64_t ticket = wait ? fg_defer(context, stream, is_there, free, kept) : fg_defer(context, stream, NULL, write_value, kept);
    return ticket != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult queue_op(CUcontext context, CUstream stream, const CUstreamBatchMemOpParams *op)
{
    const int what = op->operation;
    const bool wide = what == CU_STREAM_MEM_OP_WAIT_VALUE_64 || what == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    const struct value value = {op->value.address, wide ? op->value.value : (uint32_t)op->value.value, op->value.flags, wide};
    if (what == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || what == CU_STREAM_MEM_OP_BARRIER) return CUDA_SUCCESS;
    return queue_value(context, stream, &value, what == CU_STREAM_MEM_OP_WAIT_VALUE_32 || what == CU_STREAM_MEM_OP_WAIT_VALUE_64);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *wanted, unsigned int flags)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    result = fg_check_values(count, wanted, flags);
    if (result != CUDA_SUCCESS) return result;
    union fg_general_params params = {.batch = {context, count, wanted, flags}};
    if (fg_capture_node(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &params, &result)) return result;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) result = queue_op(context, stream, &wanted[i]);
    return result;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *wanted, unsigned int flags)
{
    return cuStreamBatchMemOp_v2(stream, count, wanted, flags);
}

static CUresult one(CUstream stream, int operation, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams op = {.value = {.operation = operation, .address = address, .value = value, .flags = flags}};
    return cuStreamBatchMemOp_v2(stream, 1, &op, 0);
}

/* The first versions take the same arguments. */
#define VALUE(symbol, operation, type)                                                    \
    CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned int flags) \
    {                                                                                     \
        return one(stream, operation, address, value, flags);                             \
    }
VALUE(cuStreamWaitValue32_v2, CU_STREAM_MEM_OP_WAIT_VALUE_32, uint32_t)
VALUE(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, uint32_t)
VALUE(cuStreamWaitValue64_v2, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
VALUE(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, cuuint64_t)
VALUE(cuStreamWriteValue32_v2, CU_STREAM_MEM_OP_WRITE_VALUE_32, uint32_t)
VALUE(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, uint32_t)
VALUE(cuStreamWriteValue64_v2, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)
VALUE(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, cuuint64_t)

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned int flags)
{
    struct fg_block block;
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_find_block(pointer, &block) || !block.managed || (bytes != 0 && bytes != block.bytes)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
