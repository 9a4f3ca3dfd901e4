/* Functions by name, version and flags (cuGetProcAddress). */
#include "driver/driver.h"

#include <string.h>

typedef void (*function)(void);
static const struct {
    const char *base;
    function address;
    int version;
    cuuint64_t flags;
} rows[] = {
#define FN(symbol, base, version, flags, parameters) {base, (function)symbol, version, flags},
#define PER_THREAD(symbol, base, version, parameters, call) {base, (function)symbol, version, 2},
#define REFUSED FN
#include "signatures/driver.def"
#undef FN
};

/* The newest row of that name that the caller's version knows; a per-thread row only where one was asked for. */
static CUdriverProcAddressQueryResult find(const char *name, int version, cuuint64_t flags, void **address)
{
    int best = -1;
    bool known = false;
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        if (strcmp(rows[i].base, name) != 0 || ((rows[i].flags & per_thread) != 0 && (flags & per_thread) == 0)) continue;
        known = true;
        if (rows[i].version > version) continue;
        const bool better =
            best < 0 || rows[i].flags > rows[best].flags || (rows[i].flags == rows[best].flags && rows[i].version > rows[best].version);
        if (better) best = i;
    }
    *address = NULL;
    if (best < 0) return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    memcpy(address, &rows[best].address, sizeof *address);
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    int driver_version;
    cuDriverGetVersion(&driver_version);
    if (symbol == NULL || found == NULL || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    /* A newer caller than the driver: it gets the newest that the driver has. */
    const CUdriverProcAddressQueryResult result = find(symbol, version < driver_version ? version : driver_version, flags, found);
    if (status != NULL) *status = result;
    return result == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, found, version, flags, NULL);
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    /* Private tables of the vendor's own runtime: this driver has none. */
    if (table == NULL || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
