#include "timeshare/bucket.h"

static int64_t clamped(int64_t value, int64_t low, int64_t high) { return value < low ? low : value > high ? high : value; }

int64_t vgpu_bucket_wait_ns(const _Atomic int64_t *paid_until_ns, int64_t now_ns)
{
    const int64_t paid = clamped(atomic_load_explicit(paid_until_ns, memory_order_relaxed), now_ns, now_ns + VGPU_BUCKET_DEBT_NS);
    return paid - now_ns;
}

void vgpu_bucket_charge(_Atomic int64_t *paid_until_ns, int64_t now_ns, int64_t gpu_ns, uint32_t percent, int64_t burst_ns)
{
    const int64_t earliest = now_ns - burst_ns, latest = now_ns + VGPU_BUCKET_DEBT_NS;
    /* More than the longest debt at once is clamped before it is multiplied. */
    const int64_t cost = clamped(gpu_ns, -VGPU_BUCKET_DEBT_NS, VGPU_BUCKET_DEBT_NS) * 100 / (int64_t)percent;
    int64_t paid = atomic_load_explicit(paid_until_ns, memory_order_relaxed), next;
    do {
        next = clamped(clamped(paid, earliest, latest) + cost, earliest, latest);
    } while (!atomic_compare_exchange_weak_explicit(paid_until_ns, &paid, next, memory_order_relaxed, memory_order_relaxed));
}
