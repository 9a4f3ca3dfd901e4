/* Memory of other processes that this one has open (cuIpcOpenMemHandle, cuMemPoolImportPointer). It is charged to its
 * maker; that this process has it open is shown in the region, so that the container goes on being charged when the
 * maker has let go of it (shared_memory.h). Any thread, with no lock of this library held. A fork child has nothing open.
 */
#ifndef VGPU_OPENED_H
#define VGPU_OPENED_H

#include "cuda_abi.h"

/* Another process's memory is at that address now; opened twice, it is closed twice. */
void vgpu_opened(CUdeviceptr pointer);

/* It was closed; an address that was not opened is none of it. */
void vgpu_opened_closed(CUdeviceptr pointer);

/* The context has ended, and what was opened in it. */
void vgpu_opened_forget_context(CUcontext context);

/* What was opened in a context that has ended lives on, until another one ends. */
void vgpu_opened_pass_context(CUcontext from, CUcontext to);

#endif
