/* Paying launches from a governor's lease: any thread, without a lock. Each thread draws on the lease in small amounts,
 * its budget. */
#ifndef VGPU_THREAD_BUDGET_H
#define VGPU_THREAD_BUDGET_H

#include <stddef.h>

#include "governor/governor.h"

/* The fast path: pays one launch out of the thread's budget. Calls nothing. false: vgpu_thread_budget_fill_and_pay. */
static inline bool vgpu_thread_budget_pay(const struct vgpu_governor *governor, uint64_t key, int64_t *budget_ns)
{
    struct vgpu_costs *costs = atomic_load_explicit(&governor->costs, memory_order_acquire);
    if (__builtin_expect(costs == NULL, 0)) return false;
    const int64_t cost = vgpu_cost_ns(costs, key), left = *budget_ns - cost;
    if (__builtin_expect(cost <= 0 || left < 0, 0)) return false;
    *budget_ns = left;
    return true;
}

/* The same, but takes from the lease what is missing, and, if there is more, some for the thread's next launches. false:
 * vgpu_governor_start if that has not been done, and vgpu_governor_ask. */
bool vgpu_thread_budget_fill_and_pay(struct vgpu_governor *governor, uint64_t key, int64_t *budget_ns);

/* What is left goes back to the lease. */
void vgpu_thread_budget_return(struct vgpu_governor *governor, int64_t *budget_ns);

#endif
