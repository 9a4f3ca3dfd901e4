/* The hooks of kind AFTER (intercept/cuda.def): the driver does its work, and what it did is noted.
 *
 * - What another process opens (cuIpc..., pool pointers): its maker is charged; when the maker lets go of it or ends, the container goes
 *   on being charged for what is still open (memory/opened.h).
 * - Physical memory by handle, its mappings, and multicast objects, which have no memory of their own: what is bound to one stays alive
 *   as long as it. The second versions of the binds name the device that the memory is on.
 * - Logical endpoints: numbers that physical memory is bound to, as to multicast objects. What this process has bound stays alive until it
 *   is unbound or the endpoint is destroyed.
 * - Streams that record a graph: launches into them are free (cores.h), so it is counted how many captures are open. A stream that is
 *   destroyed while it records ends its capture without a call that shows it: launches then ask for good whether they are recorded, and
 *   are slower for it.
 */
#include "accounting/overhead.h"
#include "compute/cores.h"
#include "config/devices.h"
#include "intercept/real.h"
#include "memory/charge.h"
#include "memory/graph_memory.h"
#include "memory/opened.h"
#include "state/process_state.h"
#include "vmm/mapping.h"
#include "vmm/physical.h"
#include "vmm/tiles.h"

/* An endpoint as an owner of bindings: no handle and no address has the highest bit. */
static uint64_t endpoint_owner(CUlogicalEndpointId endpoint) { return UINT64_C(1) << 63 | endpoint; }

static void unbind(uint64_t owner, CUdevice device, uint64_t at, uint64_t bytes)
{
    if (vgpu_state_start()) vgpu_physical_unbound(owner, vgpu_state_cuda_device(device), at, bytes);
}

#define HOOK(symbol, base, version, flags, parameters)
#define AFTER(symbol, base, version, flags, parameters, arguments, then) \
    CUresult symbol parameters                                           \
    {                                                                    \
        const CUresult result = vgpu_cuda()->symbol arguments;           \
        if (result == CUDA_SUCCESS) then;                                \
        return result;                                                   \
    }
#include "intercept/cuda.def"
