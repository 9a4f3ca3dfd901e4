#include "symbols/elf_symbol.h"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

struct search {
    const char *object, *name;
    vgpu_function found;
};

struct symbols {
    const ElfW(Sym) *table;
    const char *strings;
    const ElfW(Versym) *versions;
    const uint32_t *gnu_hash;
};

/* The linker turns the addresses of a dynamic section into absolute ones on most machines, but not on all. */
static const void *address(ElfW(Addr) base, ElfW(Addr) value) { return (const void *)(value < base ? value + base : value); }

static struct symbols symbols_of(ElfW(Addr) base, const ElfW(Dyn) *entry)
{
    struct symbols symbols = {0};
    for (; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols.table = address(base, entry->d_un.d_ptr); break;
        case DT_STRTAB: symbols.strings = address(base, entry->d_un.d_ptr); break;
        case DT_VERSYM: symbols.versions = address(base, entry->d_un.d_ptr); break;
        case DT_GNU_HASH: symbols.gnu_hash = address(base, entry->d_un.d_ptr); break;
        default: break;
        }
    }
    return symbols;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static const ElfW(Sym) *find(const struct symbols *symbols, const char *name)
{
    const uint32_t buckets = symbols->gnu_hash[0], first = symbols->gnu_hash[1], bloom_cells = symbols->gnu_hash[2];
    const uint32_t *bucket = symbols->gnu_hash + 4 + bloom_cells * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    const uint32_t hash = gnu_hash(name);
    uint32_t at = bucket[hash % buckets];
    if (at < first) return NULL;
    for (;; at++) {
        const ElfW(Sym) *symbol = &symbols->table[at];
        const uint32_t other = chain[at - first];
        /* The top bit of a version marks it hidden: kept for old programs, not the default. */
        const int hidden = symbols->versions != NULL && (symbols->versions[at] & 0x8000) != 0;
        if ((other | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && !hidden && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
            vgpu_same(symbols->strings + symbol->st_name, name))
            return symbol;
        if (other & 1) return NULL;
    }
}

/* Looks into one object; true: there it is. */
static bool look_into(struct search *search, const char *path, ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
    const char *file = path;
    for (const char *at = path; *at != '\0'; at++)
        if (*at == '/') file = at + 1;
    if (!vgpu_begins(file, search->object)) return false;
    const struct symbols symbols = symbols_of(base, dynamic);
    if (symbols.table == NULL || symbols.strings == NULL || symbols.gnu_hash == NULL) return false;
    const ElfW(Sym) *symbol = find(&symbols, search->name);
    if (symbol != NULL) search->found = (vgpu_function)(base + symbol->st_value);
    return search->found != NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC &&
            look_into(data, info->dlpi_name, info->dlpi_addr, (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr)))
            return 1;
    return 0;
}

/* The dynamic linker's list of objects, as it shows it to debuggers in the program's own dynamic section; NULL when it does not. */
static const struct link_map *first_object(void)
{
    const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    const size_t count = headers != NULL ? getauxval(AT_PHNUM) : 0;
    ElfW(Addr) base = 0;
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < count; i++)
        if (headers[i].p_type == PT_PHDR) base = (ElfW(Addr))headers - headers[i].p_vaddr;
    for (size_t i = 0; i < count; i++)
        if (headers[i].p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)(base + headers[i].p_vaddr);
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0) return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
    return NULL;
}

/* The C library is among the objects that a program starts with: they are never unloaded, and what is loaded later comes behind them. */
vgpu_function vgpu_elf_symbol(const char *object, const char *name)
{
    struct search search = {.object = object, .name = name};
    for (const struct link_map *at = first_object(); at != NULL; at = at->l_next)
        if (look_into(&search, at->l_name, at->l_addr, at->l_ld)) return search.found;
    dl_iterate_phdr(visit, &search);
    return search.found;
}
