/* What a launch costs: nanoseconds per kind of launch (function and size, or graph), learnt from launches that were timed.
 *
 * Looking up takes no lock. The median of the last three timings counts: a short kernel that was interrupted by another tenant's turn
 * appears a hundred times longer than it is.
 */
#ifndef VGPU_COSTS_H
#define VGPU_COSTS_H

#include <stdatomic.h>
#include <stdint.h>

/* A framework launches some hundred kinds; two that share a place displace each other and are timed again. */
enum { VGPU_COST_KINDS = 4096 };

struct vgpu_cost {
    _Alignas(64) _Atomic uint64_t key; /* 0: free. One cache line each: a launch looks at one */
    _Atomic int64_t ns;   /* 0: not known yet */
    int64_t timed[3];     /* the last timings, newest first; 0: none */
    int32_t being_timed;  /* launches under way whose timing is awaited */
};

struct vgpu_costs {
    struct vgpu_cost kinds[VGPU_COST_KINDS];
};

/* A key of a launch: never 0. `size` distinguishes launches of one function (blocks and threads). */
static inline uint64_t vgpu_cost_key(const void *what, uint64_t size)
{
    const uint64_t mixed = ((uint64_t)(uintptr_t)what ^ (size * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xBF58476D1CE4E5B9);
    return mixed | 1;
}

static inline struct vgpu_cost *vgpu_cost_of(struct vgpu_costs *costs, uint64_t key) { return &costs->kinds[key >> 52]; }

/* Nanoseconds of that launch; 0: not known. Any thread. */
static inline int64_t vgpu_cost_ns(struct vgpu_costs *costs, uint64_t key)
{
    struct vgpu_cost *cost = vgpu_cost_of(costs, key);
    return atomic_load_explicit(&cost->key, memory_order_relaxed) == key ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : 0;
}

/* The place of that kind, taken from another if need be. The caller holds the lock of the costs. */
struct vgpu_cost *vgpu_cost_place(struct vgpu_costs *costs, uint64_t key);

/* Learns from one timing. The caller holds the lock. */
void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, int64_t ns);

/* Enters, for want of a timing, what a launch seems to cost. The caller holds the lock. */
void vgpu_cost_guess(struct vgpu_costs *costs, uint64_t key, int64_t ns);

#endif
