/* Physical memory behind tiles of sparse arrays: held (physical.h) until the tiles that were mapped together are unmapped or mapped again
 * together, or the array is gone. Unmapped in parts they stay charged: the same part could be unmapped twice. Any thread; not from signal
 * handlers. */
#ifndef VGPU_TILES_H
#define VGPU_TILES_H

#include <stdint.h>

#include "cuda_abi.h"

/* The driver has changed tiles. What a stream has yet to do counts as done. */
void vgpu_tiles_changed(const CUarrayMapInfo *changed, unsigned int count);

/* The array, or mipmap, is gone. */
void vgpu_tiles_gone(const void *array);

#endif
