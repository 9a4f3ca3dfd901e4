/* Pure arithmetic of slices: no state, no I/O. All amounts are bytes. */
#ifndef VGPU_QUOTA_H
#define VGPU_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#define VGPU_UNLIMITED UINT64_MAX

struct vgpu_quota_view {
    uint64_t total, free;
};

/* Whether `wanted` more bytes fit beside `used` under `limit`; exact to the byte, safe against overflow. */
bool vgpu_quota_fits(uint64_t used, uint64_t wanted, uint64_t limit);

/* `a - b`, or 0 where that would be negative: damaged counters must never turn into petabytes. */
uint64_t vgpu_quota_subtract(uint64_t a, uint64_t b);

/* The stricter of our own limit and the one in the shared region, where 0 means none. */
uint64_t vgpu_quota_stricter(uint64_t own, uint64_t shared);

/* What a tenant sees of a card: never more than its limit, never more than is really there. */
struct vgpu_quota_view vgpu_quota_view(uint64_t limit, uint64_t used, uint64_t real_total, uint64_t real_free);

/* The same where more was promised than the card has, and the host's memory stands in: the limit, whatever is really there. */
struct vgpu_quota_view vgpu_quota_view_oversubscribed(uint64_t limit, uint64_t used, uint64_t real_total, uint64_t real_free);

#endif
