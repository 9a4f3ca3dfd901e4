/* Arrays and mipmaps of the stand-in driver: their size counts, and they have no content. */
#ifndef FAKEGPU_ARRAY_H
#define FAKEGPU_ARRAY_H

#include "driver/driver.h"

/* Flags of arrays, beyond those of cuda_abi.h. */
enum { CUDA_ARRAY3D_LAYERED = 0x01, CUDA_ARRAY3D_CUBEMAP = 0x04 };

/* More levels than any size has. */
enum { FG_MOST_LEVELS = 18 };

struct CUarray_st {
    enum fg_tag tag;
    int device;
    uint64_t charged, bytes; /* of all levels */
    CUDA_ARRAY3D_DESCRIPTOR as; /* of a mipmap: its first level */
    unsigned int levels;
};

/* A mipmap is an array with several levels. */
struct CUmipmappedArray_st {
    struct CUarray_st array;
};

struct CUextMemory_st {
    enum fg_tag tag;
    int device;
    uint64_t bytes;
};

bool fg_array_ok(CUarray array);

/* What a level's sides are, from the first level's; layers do not become fewer. */
CUDA_ARRAY3D_DESCRIPTOR fg_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level);

/* Tiles of a sparse array. */
CUresult fg_sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, const struct CUarray_st *array);

#endif
