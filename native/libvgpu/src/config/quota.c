#include "config/quota.h"

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

bool vgpu_quota_fits(uint64_t used, uint64_t wanted, uint64_t limit) { return used <= limit && wanted <= limit - used; }

uint64_t vgpu_quota_subtract(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint64_t vgpu_quota_stricter(uint64_t own, uint64_t shared) { return shared == 0 ? own : smaller(own, shared); }

struct vgpu_quota_view vgpu_quota_view(uint64_t limit, uint64_t used, uint64_t real_total, uint64_t real_free)
{
    if (limit == VGPU_UNLIMITED) return (struct vgpu_quota_view){.total = real_total, .free = real_free};
    const uint64_t total = smaller(limit, real_total);
    return (struct vgpu_quota_view){.total = total, .free = smaller(vgpu_quota_subtract(total, used), real_free)};
}

struct vgpu_quota_view vgpu_quota_view_oversubscribed(uint64_t limit, uint64_t used, uint64_t real_total, uint64_t real_free)
{
    if (limit == VGPU_UNLIMITED) return vgpu_quota_view(limit, used, real_total, real_free);
    return (struct vgpu_quota_view){.total = limit, .free = vgpu_quota_subtract(limit, used)};
}
