/* What PTX text defines, as far as a driver that runs no code has to know it: kernels with their parameters, and variables.
 *
 * Source: NVIDIA's PTX ISA, Directives and State Spaces, Types, and Variables. Bodies of functions are passed over.
 */
#ifndef FAKEGPU_DRIVER_PTX_H
#define FAKEGPU_DRIVER_PTX_H

#include "driver/driver.h"

enum fg_ptx_kind { FG_PTX_END, FG_PTX_KERNEL, FG_PTX_VARIABLE, FG_PTX_REFERENCE };

struct fg_ptx_item {
    char name[128];
    int parameter_count; /* of a kernel */
    size_t bytes;        /* of a variable */
    bool managed, external;
};

/* The next definition from *at on, which moves behind it. */
enum fg_ptx_kind fg_ptx_next(const char **at, struct fg_ptx_item *item);

/* The definition of that kind and name, and not just a declaration; false: there is none. */
bool fg_ptx_find(const char *image, enum fg_ptx_kind kind, const char *name, struct fg_ptx_item *item);

#endif
