/* Semaphores of other interfaces in the stand-in driver.
 *
 * A semaphore is a number of 64 bits at the beginning of the file behind the descriptor (a memfd: there is no Vulkan here to make another),
 * which every process that has the file may read and write. A timeline has any value and is waited for until it is at least that; a binary
 * one is waited for until it is 1, and is 0 again.
 */
#include "stream/semaphore.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture/capture.h"
#include "stream/deferred.h"
#include "driver/handle.h"

/* CUexternalSemaphoreHandleType */
enum { OPAQUE_FD = 1, TIMELINE_SEMAPHORE_FD = 9, LAST_TYPE = 10 };

/* A number that several semaphores, and waits in streams, may hold. */
struct number {
    uint64_t *at;
    _Atomic int holders;
};

struct CUextSemaphore_st {
    enum fg_tag tag;
    bool is_timeline;
    struct number *number;
};

static bool semaphore_ok(CUexternalSemaphore semaphore) { return fg_handle_lives(semaphore) && semaphore->tag == FG_SEMAPHORE; }

static void let_go(struct number *number)
{
    if (--number->holders > 0) return;
    munmap(number->at, sizeof *number->at);
    free(number);
}

/* The descriptor is the driver's from then on, if that succeeds. */
CUresult cuImportExternalSemaphore(CUexternalSemaphore *semaphore, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *wanted)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (semaphore == NULL || wanted == NULL || wanted->type < OPAQUE_FD || wanted->type > LAST_TYPE || wanted->flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (wanted->type != OPAQUE_FD && wanted->type != TIMELINE_SEMAPHORE_FD) return CUDA_ERROR_NOT_SUPPORTED; /* Windows's and NvSciSync's */
    if (lseek(wanted->handle.fd, 0, SEEK_END) < (off_t)sizeof(uint64_t)) return CUDA_ERROR_INVALID_HANDLE;
    CUexternalSemaphore made = calloc(1, sizeof *made);
    struct number *number = calloc(1, sizeof *number);
    uint64_t *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, wanted->handle.fd, 0);
    if (made == NULL || number == NULL || at == MAP_FAILED || !fg_handle_begins(made)) {
        free(made);
        free(number);
        if (at != MAP_FAILED) munmap(at, sizeof *at);
        return at == MAP_FAILED ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    close(wanted->handle.fd);
    number->at = at;
    number->holders = 1;
    *made = (struct CUextSemaphore_st){FG_SEMAPHORE, wanted->type == TIMELINE_SEMAPHORE_FD, number};
    *semaphore = made;
    return CUDA_SUCCESS;
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore semaphore)
{
    if (!semaphore_ok(semaphore)) return CUDA_ERROR_INVALID_HANDLE;
    fg_handle_ends(semaphore);
    let_go(semaphore->number);
    free(semaphore);
    return CUDA_SUCCESS;
}

CUresult fg_check_semaphores(const CUDA_EXT_SEM_NODE_PARAMS *semaphores)
{
    if (semaphores->numExtSems == 0 || semaphores->extSemArray == NULL || semaphores->paramsArray == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < semaphores->numExtSems; i++)
        if (!semaphore_ok(semaphores->extSemArray[i])) return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

struct step {
    struct number *number;
    bool is_timeline, wait;
    uint64_t value;
};

static bool is_signalled(void *data)
{
    const struct step *step = data;
    const uint64_t now = __atomic_load_n(step->number->at, __ATOMIC_ACQUIRE);
    return step->is_timeline ? now >= step->value : now != 0;
}

static void run_step(void *data)
{
    struct step *step = data;
    if (!step->wait)
        __atomic_store_n(step->number->at, step->is_timeline ? step->value : 1, __ATOMIC_RELEASE);
    else if (!step->is_timeline)
        __atomic_store_n(step->number->at, 0, __ATOMIC_RELEASE);
    let_go(step->number);
    free(step);
}

CUresult fg_run_semaphores(const CUDA_EXT_SEM_NODE_PARAMS *semaphores, CUstream stream, bool wait)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result == CUDA_SUCCESS) result = fg_check_semaphores(semaphores);
    for (unsigned int i = 0; i < semaphores->numExtSems && result == CUDA_SUCCESS; i++) {
        CUexternalSemaphore semaphore = semaphores->extSemArray[i];
        struct step *step = malloc(sizeof *step);
        if (step == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        *step = (struct step){semaphore->number, semaphore->is_timeline, wait, semaphores->paramsArray[i].fence_value};
        semaphore->number->holders++;
        if (fg_defer(context, stream, wait ? is_signalled : NULL, run_step, step) != 0) continue;
        let_go(step->number);
        free(step);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static CUresult run(const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_PARAMS *params, unsigned int count,
                    CUstream stream, bool wait)
{
    union fg_general_params all = {.semaphores = {(CUexternalSemaphore *)semaphores, params, count}};
    CUresult result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_node(stream, wait ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, &all, &result))
        return result;
    return fg_run_semaphores(&all.semaphores, stream, wait);
}

CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_PARAMS *params,
                                         unsigned int count, CUstream stream)
{
    return run(semaphores, params, count, stream, false);
}

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_PARAMS *params,
                                       unsigned int count, CUstream stream)
{
    return run(semaphores, params, count, stream, true);
}
