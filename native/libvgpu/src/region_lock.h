/* An exclusive lock on the region file between processes, which the kernel drops when its owner dies. */
#ifndef VGPU_REGION_LOCK_H
#define VGPU_REGION_LOCK_H

/* Takes the lock: a POSIX record lock on the file's first byte. It belongs to the process (threads share it: hold a mutex) and not to
 * its fork children, so that a child can never keep what its killed parent held. Closing any descriptor of the file drops it.
 * 0, -ETIMEDOUT after 5 s (an owner that is stopped, not dead), or another -errno. */
int vgpu_region_lock(int file);

void vgpu_region_unlock(int file);

#endif
