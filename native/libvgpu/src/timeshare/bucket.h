/* A limit of GPU time as one number: the moment until which all that was launched is paid for. Pure, lock free, and
 * shared by any number of processes: one that is killed leaves at worst one charge too many or too few.
 *
 * While that moment lies in the future nobody may launch. A charge of g nanoseconds under a limit of p percent moves it
 * by g * 100 / p. What is not used is not saved, but for a short burst.
 */
#ifndef VGPU_BUCKET_H
#define VGPU_BUCKET_H

#include <stdatomic.h>
#include <stdint.h>

/* No debt is longer: a longer one is damage (or a kernel of minutes, which then is forgiven in part). Sixteen processes
 * that start with kernels of 100 ms under a limit of 30 are 85 s in debt before NVML has shown that they took turns;
 * what is cut off here would be given back to them all the same, and let them run far beyond their limit. */
#define VGPU_BUCKET_DEBT_NS INT64_C(120000000000)

/* Nanoseconds until a launch may be made; 0: now. */
int64_t vgpu_bucket_wait_ns(const _Atomic int64_t *paid_until_ns, int64_t now_ns);

/* Charges GPU time, or gives back what was charged too much (negative). `percent` 1..100. `burst_ns`: how far the paid time may lie behind
 * now, that is, how much may be made up for. */
void vgpu_bucket_charge(_Atomic int64_t *paid_until_ns, int64_t now_ns, int64_t gpu_ns, uint32_t percent, int64_t burst_ns);

#endif
