#include "intercept/missing_symbols.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* What becomes of a process without NVML. */
#define WITHOUT_NVML                                                                                                     \
    "devices count as CUDA counts them unless a limits file lists them, core limits go by the times of launches alone, " \
    "contexts and modules are not charged"

/* Room for a few names; what does not fit is counted. */
enum { NAMES_BYTES = 160 };

struct missing {
    char names[NAMES_BYTES];
    size_t used, more;
};

static void add(struct missing *missing, const char *name)
{
    const size_t length = strlen(name);
    if (missing->used + length + 3 > sizeof missing->names) {
        missing->more++;
        return;
    }
    missing->used += (size_t)snprintf(missing->names + missing->used, sizeof missing->names - missing->used, "%s%s",
                                      missing->used > 0 ? ", " : "", name);
}

/* The rows whose functions are those of `none`, the table of a process that has no driver. */
static struct missing look(const void *table, const void *none, const struct vgpu_row *rows, size_t count, bool altered)
{
    struct missing missing = {.used = 0};
    for (size_t i = 0; i < count; i++) {
        const bool is_missing =
            memcmp((const char *)table + rows[i].offset, (const char *)none + rows[i].offset, sizeof(vgpu_function)) == 0;
        if (rows[i].altered == altered && is_missing) add(&missing, rows[i].name);
    }
    return missing;
}

static bool first(_Atomic bool *logged) { return !atomic_exchange(logged, true); }

void vgpu_missing_of_driver(void)
{
    static _Atomic bool logged;
    const struct vgpu_cuda *cuda = vgpu_cuda_at_hand(); /* looking it up takes the dynamic linker's lock */
    if (cuda == NULL || !first(&logged)) return;
    const struct missing needed = look(cuda, &vgpu_no_cuda, vgpu_cuda_rows, vgpu_cuda_row_count, false);
    const struct missing altered = look(cuda, &vgpu_no_cuda, vgpu_cuda_rows, vgpu_cuda_row_count, true);
    if (needed.used > 0)
        vgpu_log(VGPU_LOG_WARN, "the driver lacks %s (and %zu more): what depends on them is not counted", needed.names,
                 needed.more + altered.more);
    else if (altered.used > 0)
        vgpu_log(VGPU_LOG_INFO, "the driver lacks %s (and %zu more): programs cannot call them either", altered.names, altered.more);
}

static void log_what_nvml_lacks(const struct vgpu_nvml *nvml)
{
    const struct missing needed = look(nvml, &vgpu_no_nvml, vgpu_nvml_rows, vgpu_nvml_row_count, false);
    if (needed.used > 0)
        vgpu_log(VGPU_LOG_WARN, "NVML lacks %s (and %zu more): as far as they are needed, " WITHOUT_NVML, needed.names, needed.more);
}

const struct vgpu_nvml *vgpu_nvml_begin(void)
{
    static _Atomic bool logged;
    const struct vgpu_nvml *nvml = vgpu_nvml_loaded();
    if (nvml == NULL) {
        if (first(&logged)) vgpu_log(VGPU_LOG_WARN, "no NVML (libnvidia-ml.so.1 is missing): " WITHOUT_NVML);
        return NULL;
    }
    const nvmlReturn_t result = nvml->nvmlInit_v2();
    if (first(&logged)) {
        if (result == NVML_SUCCESS)
            log_what_nvml_lacks(nvml);
        else
            vgpu_log(VGPU_LOG_WARN, "no NVML (nvmlInit_v2 answers %d): " WITHOUT_NVML, (int)result);
    }
    return result == NVML_SUCCESS ? nvml : NULL;
}

static _Atomic pid_t kept_by; /* a fork child initialises NVML itself; 0: not kept */

const struct vgpu_nvml *vgpu_nvml_kept(void)
{
    if (atomic_load(&kept_by) == getpid()) return vgpu_nvml_loaded();
    const struct vgpu_nvml *nvml = vgpu_nvml_begin();
    if (nvml != NULL) atomic_store(&kept_by, getpid());
    return nvml;
}

void vgpu_nvml_lost(void) { atomic_store(&kept_by, 0); }
