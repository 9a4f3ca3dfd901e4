/* Copies and fills of the stand-in driver: both ends are memory of this process, so they are made for real.
 *
 * Every copy is one three-dimensional copy (a line has height and depth 1). It is made at once, also in a stream, unless something of
 * that stream is still to come that is not a kernel (deferred.h): then in its turn. A copy that waits for its end waits for the kernels.
 */
#ifndef FAKEGPU_COPY_H
#define FAKEGPU_COPY_H

#include "driver/driver.h"

/* Checks both ends against blocks, host memory and arrays. */
CUresult fg_check_copy(const CUDA_MEMCPY3D *copy);

/* The same for a copy that a graph will make: memory may also be what a graph will allocate. */
CUresult fg_check_planned_copy(const CUDA_MEMCPY3D *copy);
void fg_make_copy(const CUDA_MEMCPY3D *copy);

/* A copy in a stream, or (`wait`) one that returns when it is done. Checks it. */
CUresult fg_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait);

CUresult fg_check_fill(const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult fg_check_planned_fill(const CUDA_MEMSET_NODE_PARAMS *fill);
CUresult fg_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream stream);
void fg_make_fill(const CUDA_MEMSET_NODE_PARAMS *fill);

/* Where an array's element is, and whether a box lies in it; `x` in bytes. */
char *fg_array_at(CUarray array, size_t x, size_t y, size_t z);
bool fg_in_array(CUarray array, size_t x, size_t y, size_t z, size_t width_bytes, size_t height, size_t depth);
size_t fg_array_element(CUarray array);

/* While a stream records a graph, its copies and fills are nodes. */
bool fg_capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy, CUresult *result);
bool fg_capture_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *fill, CUresult *result);
bool fg_capture_host(CUstream stream, CUhostFn function, void *data, CUresult *result);

#endif
