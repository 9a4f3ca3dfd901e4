/* Where an allocation that names no place is made: the current context of the thread, and its device. Both ask the
 * driver. */
#ifndef VGPU_CURRENT_H
#define VGPU_CURRENT_H

/* Index of the device that the current context is on (devices.h; negative: leave the call to the driver). Starts the
 * process's state. */
int vgpu_memory_current_device(void);

/* The current context, as the owner of what is made in it; NULL: none. Only where the driver is part of the process. */
const void *vgpu_memory_current_context(void);

#endif
