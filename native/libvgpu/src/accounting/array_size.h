/* How many bytes an array takes, from its description. */
#ifndef VGPU_ARRAY_SIZE_H
#define VGPU_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda_abi.h"

/* Bytes of an array with `levels` mipmap levels (1: a plain array). 0 for sparse arrays and those whose memory is mapped later.
 * The driver's own padding of tiles is not known and not in it. Saturates at UINT64_MAX. */
uint64_t vgpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels);

#endif
