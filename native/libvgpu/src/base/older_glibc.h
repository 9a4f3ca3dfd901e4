/* Included before everything else, by the Makefile: what the headers of newer glibcs would rename. See older_glibc.c. */
#ifndef VGPU_OLDER_GLIBC_H
#define VGPU_OLDER_GLIBC_H

#include <features.h>

/* glibc 2.38 and newer: with _GNU_SOURCE strtol, strtoul, strtoull and sscanf become __isoc23_ functions, which read binary numbers. */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
