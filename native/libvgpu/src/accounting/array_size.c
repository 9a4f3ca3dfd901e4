#include "accounting/array_size.h"

/* Bits per element (of all its channels) of the formats whose number of channels is part of the format: CUarray_format from CUDA's
 * documentation. Formats are compared as numbers, as the list grows with every release.
 * Tables, one line per size. */
/* clang-format off */
static unsigned int whole_element_bits(int format)
{
    switch (format) {
    case 0xb0: case 0x9f: case 0xa1: return format == 0xb0 ? 12 : 24;            /* NV12, P010, P016: 4:2:0 */
    case 0xa2: case 0xa5: case 0xb2: case 0xb4: return format <= 0xa5 ? 16 : 24; /* NV16, YUY2; Y444 of 8 bits */
    case 0xa3: case 0xa4: case 0xa6: case 0xa7: return 32;                       /* P210, P216, Y210, Y216 */
    case 0xb3: case 0xb5: return 48;                                             /* Y444 of 10 and 16 bits */
    case 0xa8: case 0xa9: case 0x50: return 32;                                  /* AYUV, Y410, 10-10-10-2 */
    case 0xb1: return 64;                                                        /* Y416 */
    case 0xc0: case 0xc6: return 8;                                              /* 8 bits, 1, 2 and 4 channels */
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 16;
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;                        /* BC1, BC4: 8 bytes for 4 x 4 */
    default: return 0;
    }
}

static unsigned int element_bits(int format, unsigned int channels)
{
    switch (format) {
    case 0x01: case 0x08: return 8 * channels;             /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 16 * channels; /* 16-bit integers, half */
    case 0x03: case 0x0a: case 0x20: return 32 * channels; /* 32-bit integers, float */
    default: break;
    }
    if (format >= 0x93 && format <= 0x9e) { /* the other block-compressed formats: 16 bytes for 4 x 4 */
        const unsigned int bits = whole_element_bits(format);
        return bits != 0 ? bits : 8;
    }
    const unsigned int bits = whole_element_bits(format);
    /* A format newer than this list: the widest element there is. Charged too much rather than too little. */
    return bits != 0 ? bits : 128;
}
/* clang-format on */

static uint64_t side(uint64_t length, unsigned int level)
{
    const uint64_t at_level = level < 64 ? length >> level : 0;
    return at_level > 0 ? at_level : 1;
}

uint64_t vgpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned int levels)
{
    if ((array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
    const unsigned int bits = element_bits(array->Format, array->NumChannels);
    uint64_t total = 0;
    /* More than 32 levels exist on no card; the driver refuses them. */
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        uint64_t elements, scaled;
        /* The layers of a layered array (flag 1) are its depth, and do not shrink from level to level. */
        const uint64_t depth = (array->Flags & 1) != 0 ? side(array->Depth, 0) : side(array->Depth, level);
        if (__builtin_mul_overflow(side(array->Width, level), side(array->Height, level), &elements) ||
            __builtin_mul_overflow(elements, depth, &elements) || __builtin_mul_overflow(elements, bits, &scaled) ||
            __builtin_add_overflow(total, scaled / 8 + (scaled % 8 != 0), &total))
            return UINT64_MAX;
    }
    return total;
}
