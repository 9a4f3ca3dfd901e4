#include "governor/costs.h"

#include <assert.h>

static_assert(VGPU_COST_KINDS == 1 << 12, "vgpu_cost_of takes the upper 12 bits of a key");

struct vgpu_cost *vgpu_cost_place(struct vgpu_costs *costs, uint64_t key)
{
    struct vgpu_cost *cost = vgpu_cost_of(costs, key);
    if (atomic_load_explicit(&cost->key, memory_order_relaxed) == key) return cost;
    atomic_store_explicit(&cost->ns, 0, memory_order_relaxed);
    atomic_store_explicit(&cost->key, key, memory_order_relaxed);
    cost->timed[0] = cost->timed[1] = cost->timed[2] = 0;
    cost->being_timed = 0;
    return cost;
}

static int64_t median(int64_t a, int64_t b, int64_t c)
{
    const int64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, int64_t ns)
{
    struct vgpu_cost *cost = vgpu_cost_place(costs, key);
    if (ns < 1) ns = 1;
    cost->timed[2] = cost->timed[1];
    cost->timed[1] = cost->timed[0];
    cost->timed[0] = ns;
    /* Two timings: the shorter, as only something foreign makes a kernel longer than it is. */
    const int64_t known = cost->timed[2] != 0   ? median(cost->timed[0], cost->timed[1], cost->timed[2])
                          : cost->timed[1] != 0 ? (cost->timed[1] < ns ? cost->timed[1] : ns)
                                                : ns;
    atomic_store_explicit(&cost->ns, known, memory_order_relaxed);
}

void vgpu_cost_guess(struct vgpu_costs *costs, uint64_t key, int64_t ns)
{
    struct vgpu_cost *cost = vgpu_cost_place(costs, key);
    if (cost->timed[0] == 0) atomic_store_explicit(&cost->ns, ns < 1 ? 1 : ns, memory_order_relaxed);
}
