/* Functions whose special stream is the thread's own: one special stream is as good as another here, so they are their twins. */
#include "driver/driver.h"

#define FN(symbol, base, version, flags, parameters)
#define REFUSED(symbol, base, version, flags, parameters)
#define PER_THREAD(symbol, base, version, parameters, call) \
    CUresult symbol parameters { return call; }
#include "signatures/driver.def"
