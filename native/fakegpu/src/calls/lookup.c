/* Functions by name, version and flags (cuGetProcAddress). */
#include "driver/driver.h"

#include <pthread.h>
#include <string.h>

typedef void (*function)(void);
static const struct {
    const char *base;
    size_t length;
    function address;
    int version;
    cuuint64_t flags;
} rows[] = {
#define FN(symbol, base, version, flags, parameters) {base, sizeof base - 1, (function)symbol, version, flags},
#include "driver/driver.def"
#undef FN
};
enum { ROWS = sizeof rows / sizeof *rows, CHAINS = 1024 };

/* The rows by name: a program asks for hundreds at its start, and a driver's answer costs no search of all. */
static pthread_once_t chained = PTHREAD_ONCE_INIT;
static short first[CHAINS], following[ROWS]; /* one more than the row; 0: the end */

static unsigned int chain_of(const char *name, size_t length)
{
    unsigned int hash = (unsigned int)length;
    for (size_t i = 2; i < length; i += 2) hash = hash * 31 + (unsigned char)name[i]; /* all begin with "cu" */
    return hash % CHAINS;
}

/* From the last to the first, so that a chain has them in their order. */
static void chain_rows(void)
{
    for (short i = ROWS; i > 0; i--) {
        short *head = &first[chain_of(rows[i - 1].base, rows[i - 1].length)];
        following[i - 1] = *head;
        *head = i;
    }
}

/* The newest row of that name that the caller's version knows; a per-thread row only where one was asked for. */
static CUdriverProcAddressQueryResult find(const char *name, int version, cuuint64_t flags, void **address)
{
    int best = -1;
    bool known = false;
    const size_t length = strlen(name);
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    pthread_once(&chained, chain_rows);
    for (int i = first[chain_of(name, length)] - 1; i >= 0; i = following[i] - 1) {
        if (rows[i].length != length || memcmp(rows[i].base, name, length) != 0 ||
            ((rows[i].flags & per_thread) != 0 && (flags & per_thread) == 0))
            continue;
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
