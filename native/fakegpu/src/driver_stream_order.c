/* Host functions, and values in memory that streams write and wait for, in the stand-in driver. */
#include <stdlib.h>

#include "block.h"
#include "copy.h"
#include "deferred.h"

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
    return fg_is_recording(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : queue_call(stream, &call);
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
    case CU_STREAM_WAIT_VALUE_GEQ: return wanted->wide ? (int64_t)(now - wanted->value) >= 0 : (int32_t)(uint32_t)(now - wanted->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == wanted->value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & wanted->value) != 0;
    default: return (wanted->wide ? ~(now | wanted->value) : (uint32_t) ~(now | wanted->value)) != 0;
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

static CUresult check_value(CUstream stream, const struct value *value, unsigned int flags, CUcontext *context)
{
    CUdeviceptr base;
    size_t bytes;
    const size_t unit = value->wide ? 8 : 4;
    const CUresult result = fg_stream_context(stream, context);
    if (result != CUDA_SUCCESS) return result;
    if (fg_is_recording(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* such nodes are not modelled */
    if (value->at == 0 || value->at % unit != 0 || (value->flags & ~flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return fg_touch(value->at, unit) || fg_is_host_memory(value->at, &base, &bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult queue_value(CUcontext context, CUstream stream, const struct value *value, bool wait)
{
    struct value *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *value;
    const uint64_t ticket = wait ? fg_defer(context, stream, is_there, free, kept) : fg_defer(context, stream, NULL, write_value, kept);
    return ticket != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult wait_for(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags, bool wide)
{
    CUcontext context;
    const struct value wanted = {address, value, flags, wide};
    const CUresult result = check_value(stream, &wanted, 3U | CU_STREAM_WAIT_VALUE_FLUSH, &context);
    return result == CUDA_SUCCESS ? queue_value(context, stream, &wanted, true) : result;
}

static CUresult write_to(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags, bool wide)
{
    enum { NO_MEMORY_BARRIER = 1 };
    CUcontext context;
    const struct value wanted = {address, value, flags, wide};
    const CUresult result = check_value(stream, &wanted, NO_MEMORY_BARRIER, &context);
    return result == CUDA_SUCCESS ? queue_value(context, stream, &wanted, false) : result;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
    return wait_for(stream, address, value, flags, false);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    return wait_for(stream, address, value, flags, true);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
    return write_to(stream, address, value, flags, false);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    return write_to(stream, address, value, flags, true);
}

/* The first versions take the same arguments. */
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags) { return wait_for(stream, address, value, flags, false); }
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) { return wait_for(stream, address, value, flags, true); }
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags) { return write_to(stream, address, value, flags, false); }
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) { return write_to(stream, address, value, flags, true); }

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *wanted, unsigned int flags)
{
    CUresult result = wanted == NULL || count == 0 || count > 256 || flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUdeviceptr at = wanted[i].value.address;
        const cuuint64_t value = wanted[i].value.value;
        const unsigned int how = wanted[i].value.flags;
        switch (wanted[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32: result = wait_for(stream, at, (uint32_t)value, how, false); break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: result = wait_for(stream, at, value, how, true); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: result = write_to(stream, at, (uint32_t)value, how, false); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: result = write_to(stream, at, value, how, true); break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER: break; /* memory is seen by all at once */
        default: result = CUDA_ERROR_INVALID_VALUE; break;
        }
    }
    return result;
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *wanted, unsigned int flags)
{
    return cuStreamBatchMemOp_v2(stream, count, wanted, flags);
}

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
