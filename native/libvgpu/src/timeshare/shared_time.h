/* GPU time that several processes of a container would all be charged for, because their launches ran at the same time
 * and took turns.
 *
 * A card does not give more than a second per second. So the time in which launches of a container ran is charged once:
 * a process claims the part of it that no other process has claimed. One shared cell, until when all is claimed; pure,
 * lock free, and indifferent to a process that was killed.
 */
#ifndef VGPU_SHARED_TIME_H
#define VGPU_SHARED_TIME_H

#include <stdatomic.h>
#include <stdint.h>

/* Claims [from_ns, until_ns) and returns how much of it nobody had claimed. A cell that lies in the future was written
 * by somebody else than us, and counts for nothing. */
int64_t vgpu_shared_time_claim(_Atomic int64_t *claimed_until_ns, int64_t from_ns, int64_t until_ns, int64_t now_ns);

#endif
