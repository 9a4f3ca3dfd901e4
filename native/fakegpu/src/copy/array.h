/* Arrays of the stand-in driver, and the levels of mipmaps, each of which is one. */
#ifndef FAKEGPU_ARRAY_H
#define FAKEGPU_ARRAY_H

#include "driver/driver.h"

/* Flags of arrays, beyond those of cuda_abi.h. */
enum { CUDA_ARRAY3D_LAYERED = 0x01, CUDA_ARRAY3D_SURFACE_LDST = 0x02, CUDA_ARRAY3D_CUBEMAP = 0x04 };

/* More levels than any size has. */
enum { FG_MOST_LEVELS = 18 };

struct CUarray_st {
    enum fg_tag tag;
    int device;
    uint64_t charged;
    CUDA_ARRAY3D_DESCRIPTOR as;
    uint64_t content, content_bytes;
    bool is_level; /* of a mipmap, with which it ends */
};

struct CUmipmappedArray_st {
    struct CUarray_st array; /* all levels together; described as the first */
    struct CUarray_st level[FG_MOST_LEVELS];
    unsigned int levels;
};

struct CUextMemory_st {
    enum fg_tag tag;
    int device;
    uint64_t bytes;
};

bool fg_array_ok(CUarray array);

/* Bytes of an element of that format; 0: no format that is known here. */
uint64_t fg_element_bytes(int format, unsigned int channels);

/* What a level's sides are, from the first level's; layers do not become fewer. */
CUDA_ARRAY3D_DESCRIPTOR fg_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level);

/* Bytes of one level. */
uint64_t fg_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level);

/* A mipmap whose memory is charged (or, `foreign`, somebody else's). */
CUresult fg_make_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels, bool foreign);

#endif
