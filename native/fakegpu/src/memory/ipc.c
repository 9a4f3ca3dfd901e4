/* Device memory that processes share by handle (cuIpc*) in the stand-in driver: they see the same bytes.
 *
 * The pages of a block that is shared come to lie in a file of its process, which others open through /proc: both must be in one pid
 * namespace, as CUDA wants it too. The memory is on the card until the last of them has let go of it (shared.h).
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/arena.h"
#include "memory/block.h"
#include "state/shared.h"

static const uint64_t MAGIC = 0x4647504349504348, PAGE = 4096;

struct handle {
    uint64_t magic, base, bytes;
    int32_t pid, file, entry;
    uint32_t generation;
    uint64_t inode; /* what the file must be */
    int32_t device_card;
};
static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it fits into CUDA's handle");

static uint64_t first_page(uint64_t base) { return base & ~(PAGE - 1); }
static uint64_t page_bytes(uint64_t base, uint64_t bytes) { return (base + bytes + PAGE - 1) / PAGE * PAGE - first_page(base); }

/* Moves the block's pages into a file. Blocks beside it on its first and last page move along, which they do not notice. */
static int into_file(const struct fg_block *block)
{
    const uint64_t from = first_page(block->base), bytes = page_bytes(block->base, block->bytes);
    const int file = memfd_create("fakegpu-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return file >= 0 ? close(file), -1 : -1;
    uint64_t done = 0;
    while (block->touched && done < bytes) {
        const ssize_t written = pwrite(file, (const char *)(uintptr_t)from + done, bytes - done, (off_t)done);
        if (written <= 0) return close(file), -1;
        done += (uint64_t)written;
    }
    void *mapped = mmap((void *)(uintptr_t)from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return mapped != MAP_FAILED ? file : (close(file), -1);
}

/* With fg_driver.lock. */
static CUresult share(struct fg_block *block)
{
    if (block->kind != FG_DEVICE_MEMORY || block->managed) return CUDA_ERROR_INVALID_VALUE;
    if (block->shared_entry != 0) return CUDA_SUCCESS;
    block->touched = true; /* its neighbours on the same pages may be */
    const int file = into_file(block);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    fg_lock(fg_driver.state);
    const int entry = fg_shared_new(fg_driver.state, fg_driver.card_of[block->device], block->charged);
    if (entry >= 0) block->generation = fg_driver.state->shared[entry].generation;
    fg_unlock(fg_driver.state);
    if (entry < 0) return close(file), CUDA_ERROR_OUT_OF_MEMORY;
    block->file = fg_own_file(file);
    block->shared_entry = entry + 1;
    block->charged = 0; /* the entry's now */
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct fg_block block;
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    result = fg_change_block(pointer, share);
    if (result != CUDA_SUCCESS || !fg_find_block(pointer, &block)) return CUDA_ERROR_INVALID_VALUE;
    const struct handle made = {.magic = MAGIC,
                                .base = block.base,
                                .bytes = block.bytes,
                                .pid = getpid(),
                                .file = block.file.number,
                                .entry = block.shared_entry - 1,
                                .generation = block.generation,
                                .inode = block.file.inode,
                                .device_card = fg_driver.card_of[block.device]};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return CUDA_SUCCESS;
}

static CUresult map_pages(const struct handle *from, CUdeviceptr *pointer)
{
    char path[64];
    const uint64_t bytes = page_bytes(from->base, from->bytes), at = fg_arena_take(bytes + PAGE);
    if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", from->pid, from->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    const uint64_t place = (at + PAGE - 1) / PAGE * PAGE;
    const bool same = file >= 0 && fg_own_file(file).inode == from->inode;
    void *mapped = same ? mmap((void *)(uintptr_t)place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (mapped == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
    *pointer = place + from->base % PAGE;
    return CUDA_SUCCESS;
}

static int device_of_card(int card)
{
    int device = fg_driver.device_count - 1;
    while (device >= 0 && fg_driver.card_of[device] != card) device--;
    return device;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    enum { LAZY_ENABLE_PEER_ACCESS = 1 };
    struct handle from;
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    memcpy(&from, &handle, sizeof from);
    if (pointer == NULL || (flags & ~(unsigned int)LAZY_ENABLE_PEER_ACCESS) != 0 || from.magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
    if (from.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that made it */
    const int device = device_of_card(from.device_card);
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    fg_lock(fg_driver.state);
    const bool held = fg_shared_hold(fg_driver.state, from.entry, from.generation);
    fg_unlock(fg_driver.state);
    if (!held) return CUDA_ERROR_INVALID_VALUE;
    struct fg_block window = {.bytes = from.bytes,
                              .device = device,
                              .kind = FG_OPENED_MEMORY,
                              .touched = true,
                              .shared_entry = from.entry + 1,
                              .generation = from.generation,
                              .file = {.number = -1}};
    result = map_pages(&from, &window.base);
    if (result == CUDA_SUCCESS) result = fg_add_window(&window);
    if (result == CUDA_SUCCESS) return *pointer = window.base, CUDA_SUCCESS;
    fg_leave_shared(&window);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    struct fg_block *block = fg_remove_block(pointer, 1U << FG_OPENED_MEMORY);
    if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)first_page(block->base), page_bytes(block->base, block->bytes));
    fg_drop_block(block);
    return CUDA_SUCCESS;
}

void fg_leave_shared(struct fg_block *block)
{
    fg_lock(fg_driver.state);
    fg_shared_drop(fg_driver.state, block->shared_entry - 1);
    fg_unlock(fg_driver.state);
    if (fg_is_own_file(&block->file)) close(block->file.number); /* a process that has it mapped keeps the pages */
}
