#include "timeshare/fairness.h"

#include <stddef.h>

/* Waiters look again at least every 5 ms; several missed looks are somebody who is gone. */
static const uint64_t WAITING_NS = 40000000;
/* Differences below a lease (governor.c) are not worth a change of turns. */
static const uint64_t LEVEL_NS = 2000000;

static bool is_waiting(struct vgpu_member member, int64_t now_ns)
{
    const uint64_t at = atomic_load_explicit(member.waiting_at_ns, memory_order_relaxed);
    return at != 0 && at + WAITING_NS > (uint64_t)now_ns && at <= (uint64_t)now_ns;
}

/* The least that anybody else who waits has had; UINT64_MAX if nobody does. */
static uint64_t least_of_others(const struct vgpu_members *members, struct vgpu_member own, int64_t now_ns)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < members->count; i++) {
        const struct vgpu_member other = members->member(members, i);
        if (other.had_ns == NULL || other.had_ns == own.had_ns || !is_waiting(other, now_ns)) continue;
        const uint64_t had = atomic_load_explicit(other.had_ns, memory_order_relaxed);
        if (had < least) least = had;
    }
    return least;
}

bool vgpu_fairness_waits(const struct vgpu_members *members, struct vgpu_member own, int64_t now_ns)
{
    if (own.had_ns == NULL) return false;
    atomic_store_explicit(own.waiting_at_ns, (uint64_t)now_ns, memory_order_relaxed);
    const uint64_t least = least_of_others(members, own, now_ns), had = atomic_load_explicit(own.had_ns, memory_order_relaxed);
    return least < had && had - least > LEVEL_NS;
}

void vgpu_fairness_withdraw(struct vgpu_member own)
{
    if (own.had_ns != NULL) atomic_store_explicit(own.waiting_at_ns, 0, memory_order_relaxed);
}

void vgpu_fairness_had(struct vgpu_member own, int64_t gpu_ns)
{
    if (own.had_ns == NULL) return;
    uint64_t had = atomic_load_explicit(own.had_ns, memory_order_relaxed), next;
    do {
        next = gpu_ns < 0 && (uint64_t)-gpu_ns > had ? 0 : had + (uint64_t)gpu_ns;
    } while (!atomic_compare_exchange_weak_explicit(own.had_ns, &had, next, memory_order_relaxed, memory_order_relaxed));
}

void vgpu_fairness_rejoin(const struct vgpu_members *members, struct vgpu_member own, int64_t now_ns)
{
    if (own.had_ns == NULL) return;
    const uint64_t least = least_of_others(members, own, now_ns);
    if (least != UINT64_MAX && atomic_load_explicit(own.had_ns, memory_order_relaxed) < least)
        atomic_store_explicit(own.had_ns, least, memory_order_relaxed);
}
