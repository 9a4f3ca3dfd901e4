/* An audit module: the dynamic linker asks it before it loads anything (rtld-audit(7)), and gets another library in libvgpu's place. */
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
unsigned int la_version(unsigned int version) { return version; }
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag)
{
    return strstr(name, "libvgpu.so") != NULL ? (char *)"libm.so.6" : (char *)name;
}
