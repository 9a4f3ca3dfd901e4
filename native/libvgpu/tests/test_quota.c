#include "check.h"
#include "config/quota.h"

int main(void)
{
    CHECK(vgpu_quota_fits(0, 100, 100));
    CHECK(!vgpu_quota_fits(0, 101, 100));
    CHECK(!vgpu_quota_fits(1, 100, 100));
    CHECK(!vgpu_quota_fits(101, 0, 100));
    CHECK(!vgpu_quota_fits(0, 1, 0));
    CHECK(!vgpu_quota_fits(10, UINT64_MAX, 100)); /* the sum would wrap to 9 */
    CHECK(vgpu_quota_fits(10, UINT64_MAX - 10, VGPU_UNLIMITED));
    CHECK(vgpu_quota_subtract(5, 7) == 0 && vgpu_quota_subtract(7, 5) == 2);
    CHECK(vgpu_quota_stricter(100, 0) == 100 && vgpu_quota_stricter(100, 50) == 50 && vgpu_quota_stricter(100, 200) == 100);
    CHECK(vgpu_quota_stricter(0, 1) == 0);

    struct vgpu_quota_view view = vgpu_quota_view(100, 30, 1000, 900);
    CHECK(view.total == 100 && view.free == 70);
    view = vgpu_quota_view(100, 30, 1000, 20); /* the card itself is nearly full */
    CHECK(view.total == 100 && view.free == 20);
    view = vgpu_quota_view(100, 130, 1000, 900); /* the limit was lowered below what is held */
    CHECK(view.total == 100 && view.free == 0);
    view = vgpu_quota_view(5000, 30, 1000, 900); /* more was promised than there is */
    CHECK(view.total == 1000 && view.free == 900);
    view = vgpu_quota_view(VGPU_UNLIMITED, 30, 1000, 900);
    CHECK(view.total == 1000 && view.free == 900);
    view = vgpu_quota_view_oversubscribed(5000, 30, 1000, 900); /* the host stands in */
    CHECK(view.total == 5000 && view.free == 4970);
    view = vgpu_quota_view_oversubscribed(VGPU_UNLIMITED, 30, 1000, 900);
    CHECK(view.total == 1000 && view.free == 900);
    return 0;
}
