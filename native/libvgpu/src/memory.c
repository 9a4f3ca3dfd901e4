/* Reserving, booking and releasing: what all memory hooks have in common. */
#include "memory.h"

#include "log.h"
#include "real.h"
#include "runtime.h"

static struct vgpu_ledger ledger;

int vgpu_memory_current_device(void)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUdevice device;
    if (cuda == NULL || cuda->cuCtxGetDevice(&device) != CUDA_SUCCESS || !vgpu_runtime_start()) return -1;
    return vgpu_runtime_cuda_device(device);
}

CUresult vgpu_memory_reserve(int device, uint64_t bytes)
{
    return vgpu_runtime_reserve(device, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_memory_keep(enum vgpu_block_kind kind, uint64_t key, int device, uint64_t bytes, const void *context)
{
    const struct vgpu_block block = {.key = key, .bytes = bytes, .context = context, .device = device, .kind = kind};
    struct vgpu_block replaced;
    if (device < 0) return CUDA_SUCCESS;
    const int result = vgpu_ledger_put(&ledger, &block, &replaced);
    if (result == 1) vgpu_runtime_release(replaced.device, replaced.bytes);
    if (result >= 0) return CUDA_SUCCESS;
    vgpu_runtime_release(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool vgpu_memory_take(enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block)
{
    return vgpu_runtime_start() && vgpu_ledger_take(&ledger, kind, key, block);
}

void vgpu_memory_settle(const struct vgpu_block *block, CUresult freed)
{
    struct vgpu_block replaced;
    if (freed == CUDA_SUCCESS)
        vgpu_runtime_release(block->device, block->bytes);
    else if (vgpu_ledger_put(&ledger, block, &replaced) < 0)
        vgpu_log(VGPU_LOG_WARN, "no memory to keep a block that the driver did not free; its bytes stay charged");
}

static void forget_block(const struct vgpu_block *block) { vgpu_runtime_release(block->device, block->bytes); }

void vgpu_memory_forget_context(CUcontext context)
{
    if (context != NULL) vgpu_ledger_forget_context(&ledger, context, forget_block);
}

void vgpu_memory_forget_all(void) { vgpu_ledger_reset(&ledger); }
