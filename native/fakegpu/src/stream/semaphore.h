/* Semaphores of other interfaces (semaphore.c). */
#ifndef FAKEGPU_SEMAPHORE_H
#define FAKEGPU_SEMAPHORE_H

#include "driver/driver.h"

/* Whether all of them are semaphores, with parameters. */
CUresult fg_check_semaphores(const CUDA_EXT_SEM_NODE_PARAMS *semaphores);

/* Signals them all, or waits for them all, when the stream gets there. */
CUresult fg_run_semaphores(const CUDA_EXT_SEM_NODE_PARAMS *semaphores, CUstream stream, bool wait);

#endif
