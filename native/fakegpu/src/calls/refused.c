/* What this driver has by name only: there are no displays, no other graphics interfaces and no private extensions behind it. */
#include "driver/driver.h"

/* The parameters' names are those of the table. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define FN(symbol, base, version, flags, parameters)
#define PER_THREAD(symbol, base, version, parameters, call)
#define REFUSED(symbol, base, version, flags, parameters) \
    CUresult symbol parameters { return fg_driver.initialised ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED; }
#include "signatures/driver.def"
