#include "governor/thread_budget.h"

/* What a thread takes from the lease at once: many of the shortest kernels (2 us), and a thirtieth of what half a lease has, which a thread
 * that launches nothing more may keep. */
static const int64_t BUDGET_NS = 64000;

static bool take_from_lease(struct vgpu_governor *governor, int64_t ns)
{
    if (atomic_fetch_sub_explicit(&governor->lease_ns, ns, memory_order_relaxed) >= ns) return true;
    atomic_fetch_add_explicit(&governor->lease_ns, ns, memory_order_relaxed);
    return false;
}

bool vgpu_thread_budget_fill_and_pay(struct vgpu_governor *governor, uint64_t key, int64_t *budget_ns)
{
    if (vgpu_thread_budget_pay(governor, key, budget_ns)) return true;
    struct vgpu_costs *costs = atomic_load_explicit(&governor->costs, memory_order_acquire);
    const int64_t cost_ns = costs != NULL ? vgpu_cost_ns(costs, key) : 0;
    if (cost_ns <= 0) return false;
    const int64_t missing_ns = cost_ns - *budget_ns, taken_ns = missing_ns < BUDGET_NS ? BUDGET_NS : missing_ns;
    const bool whole = take_from_lease(governor, taken_ns);
    if (!whole && !take_from_lease(governor, missing_ns)) return false;
    *budget_ns += (whole ? taken_ns : missing_ns) - cost_ns;
    return true;
}

void vgpu_thread_budget_return(struct vgpu_governor *governor, int64_t *budget_ns)
{
    atomic_fetch_add_explicit(&governor->lease_ns, *budget_ns, memory_order_relaxed);
    *budget_ns = 0;
}
