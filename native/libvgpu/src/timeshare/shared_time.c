#include "timeshare/shared_time.h"

int64_t vgpu_shared_time_claim(_Atomic int64_t *claimed_until_ns, int64_t from_ns, int64_t until_ns, int64_t now_ns)
{
    int64_t claimed = atomic_load_explicit(claimed_until_ns, memory_order_relaxed), begin;
    do {
        begin = claimed > from_ns && claimed <= now_ns ? claimed : from_ns;
        if (begin >= until_ns) return 0;
    } while (!atomic_compare_exchange_weak_explicit(claimed_until_ns, &claimed, until_ns, memory_order_relaxed, memory_order_relaxed));
    return until_ns - begin;
}
