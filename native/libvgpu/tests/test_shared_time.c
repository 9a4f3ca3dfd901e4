#include "check.h"
#include "compute/shared_time.h"

static _Atomic int64_t word;

static void time_is_claimed_once(void)
{
    word = 0;
    CHECK(vgpu_claim(&word, 100, 200, 200) == 100);
    CHECK(vgpu_claim(&word, 100, 200, 200) == 0);   /* another process, the same time */
    CHECK(vgpu_claim(&word, 150, 260, 300) == 60);  /* what is left of it */
    CHECK(vgpu_claim(&word, 280, 300, 300) == 20);  /* a pause is nobody's */
    CHECK(vgpu_claim(&word, 10, 270, 300) == 0);    /* told of late */
    CHECK(vgpu_claim(&word, 300, 300, 300) == 0);
}

static void a_word_in_the_future_hides_nothing(void)
{
    word = INT64_MAX;
    CHECK(vgpu_claim(&word, 100, 200, 200) == 100);
    CHECK(vgpu_claim(&word, 150, 210, 210) == 10);
}

int main(void)
{
    time_is_claimed_once();
    a_word_in_the_future_hides_nothing();
    return 0;
}
