/* Physical memory that processes share by descriptor, in the stand-in driver.
 *
 * What was exported is on the card until the last process that made or imported it has let go (shared.h); a descriptor that nobody has
 * imported does not keep it, but importing it takes the bytes again.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "state/shared.h"
#include "vmm/physical.h"

/* What an exported handle's file holds: which entry of the machine's state, and what to make again if that is gone. */
struct exported {
    uint64_t magic, bytes;
    int32_t card; /* -1: on the host */
    int32_t entry;
    uint32_t generation;
};
static const uint64_t EXPORTED = 0x4647564d4d455850;
enum { POSIX_FILE = 1 }; /* CUmemAllocationHandleType */

/* An entry of the machine's state for memory that this process is charged with; memory of the host is charged to nobody. */
static bool share(struct fg_physical *memory)
{
    if (memory->shared_entry != 0) return true;
    const int card = memory->foreign ? 0 : fg_driver.card_of[memory->device];
    fg_lock(fg_driver.state);
    const int entry = fg_shared_new(fg_driver.state, card, memory->foreign ? 0 : memory->bytes);
    if (entry >= 0) memory->generation = fg_driver.state->shared[entry].generation;
    fg_unlock(fg_driver.state);
    memory->shared_entry = entry + 1;
    return entry >= 0;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    if (shareable == NULL || type != POSIX_FILE || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    struct exported note = {.magic = EXPORTED};
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_physical_of(handle);
    /* As it was asked for when it was made; not by a handle that was imported (H100). */
    const bool may = memory != NULL && (memory->handle_types & POSIX_FILE) != 0 && !memory->imported;
    const CUresult result = !may ? CUDA_ERROR_INVALID_VALUE : share(memory) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        note.bytes = memory->bytes;
        note.card = memory->foreign ? -1 : fg_driver.card_of[memory->device];
        note.entry = memory->shared_entry - 1;
        note.generation = memory->generation;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    if (result != CUDA_SUCCESS) return result;
    const int file = memfd_create("fakegpu-handle", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, &note, sizeof note, 0) != (ssize_t)sizeof note) return CUDA_ERROR_UNKNOWN;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

/* Holds the entry of an export, or, when nobody holds it any more, one in its place; the descriptor then names that one. */
static bool hold(struct exported *note, int file)
{
    fg_lock(fg_driver.state);
    bool held = fg_shared_hold(fg_driver.state, note->entry, note->generation);
    if (!held && (note->card < 0 || fg_take(fg_driver.state, note->card, note->bytes))) {
        note->entry = fg_shared_new(fg_driver.state, note->card < 0 ? 0 : note->card, note->card < 0 ? 0 : note->bytes);
        held = note->entry >= 0;
        if (held) note->generation = fg_driver.state->shared[note->entry].generation;
        if (!held && note->card >= 0) fg_give(fg_driver.state, note->card, note->bytes);
    }
    fg_unlock(fg_driver.state);
    return held && pwrite(file, note, sizeof *note, 0) == (ssize_t)sizeof *note;
}

/* A handle of its own for each import, also in the process that made the memory (H100). */
static CUresult import(struct exported *note, int file, struct fg_physical **memory)
{
    int device = fg_driver.device_count - 1;
    while (device >= 0 && fg_driver.card_of[device] != note->card) device--;
    if (note->card >= 0 && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (!hold(note, file)) return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = fg_add_physical(FG_PHYSICAL, device, note->bytes, note->card < 0);
    if (*memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*memory)->handle_types = POSIX_FILE;
    (*memory)->imported = true;
    (*memory)->shared_entry = note->entry + 1;
    (*memory)->generation = note->generation;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    struct exported note;
    struct fg_physical *memory;
    const int file = (int)(intptr_t)shareable;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (handle == NULL || type != POSIX_FILE) return CUDA_ERROR_INVALID_VALUE;
    if (pread(file, &note, sizeof note, 0) != (ssize_t)sizeof note || note.magic != EXPORTED) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = import(&note, file, &memory);
    pthread_mutex_unlock(&fg_physical_lock);
    if (result == CUDA_SUCCESS) *handle = (uint64_t)(uintptr_t)memory;
    return result;
}
