#include "check.h"
#include "timeshare/shared_time.h"

static _Atomic int64_t cell;

static void time_is_claimed_once(void)
{
    cell = 0;
    CHECK(vgpu_shared_time_claim(&cell, 100, 200, 200) == 100);
    CHECK(vgpu_shared_time_claim(&cell, 100, 200, 200) == 0);   /* another process, the same time */
    CHECK(vgpu_shared_time_claim(&cell, 150, 260, 300) == 60);  /* what is left of it */
    CHECK(vgpu_shared_time_claim(&cell, 280, 300, 300) == 20);  /* a pause is nobody's */
    CHECK(vgpu_shared_time_claim(&cell, 10, 270, 300) == 0);    /* reported late */
    CHECK(vgpu_shared_time_claim(&cell, 300, 300, 300) == 0);
}

static void a_cell_in_the_future_hides_nothing(void)
{
    cell = INT64_MAX;
    CHECK(vgpu_shared_time_claim(&cell, 100, 200, 200) == 100);
    CHECK(vgpu_shared_time_claim(&cell, 150, 210, 210) == 10);
}

int main(void)
{
    time_is_claimed_once();
    a_cell_in_the_future_hides_nothing();
    return 0;
}
