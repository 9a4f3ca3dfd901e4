#include "elf_symbol.h"

#include <elf.h>
#include <link.h>
#include <string.h>

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
static const void *address(const struct dl_phdr_info *info, ElfW(Addr) value)
{
    return (const void *)(value < info->dlpi_addr ? value + info->dlpi_addr : value);
}

static struct symbols symbols_of(const struct dl_phdr_info *info, const ElfW(Dyn) *entry)
{
    struct symbols symbols = {0};
    for (; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols.table = address(info, entry->d_un.d_ptr); break;
        case DT_STRTAB: symbols.strings = address(info, entry->d_un.d_ptr); break;
        case DT_VERSYM: symbols.versions = address(info, entry->d_un.d_ptr); break;
        case DT_GNU_HASH: symbols.gnu_hash = address(info, entry->d_un.d_ptr); break;
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
    const uint32_t buckets = symbols->gnu_hash[0], first = symbols->gnu_hash[1], bloom_words = symbols->gnu_hash[2];
    const uint32_t *bucket = symbols->gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    const uint32_t hash = gnu_hash(name);
    uint32_t at = bucket[hash % buckets];
    if (at < first) return NULL;
    for (;; at++) {
        const ElfW(Sym) *symbol = &symbols->table[at];
        const uint32_t other = chain[at - first];
        /* The top bit of a version marks it hidden: kept for old programs, not the default. */
        const int hidden = symbols->versions != NULL && (symbols->versions[at] & 0x8000) != 0;
        if ((other | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && !hidden &&
            ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && strcmp(symbols->strings + symbol->st_name, name) == 0)
            return symbol;
        if (other & 1) return NULL;
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct search *search = data;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *base = slash != NULL ? slash + 1 : info->dlpi_name;
    if (strncmp(base, search->object, strlen(search->object)) != 0) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const struct symbols symbols = symbols_of(info, (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
        if (symbols.table == NULL || symbols.strings == NULL || symbols.gnu_hash == NULL) continue;
        const ElfW(Sym) *symbol = find(&symbols, search->name);
        if (symbol != NULL) search->found = (vgpu_function)(info->dlpi_addr + symbol->st_value);
    }
    return search->found != NULL;
}

vgpu_function vgpu_elf_symbol(const char *object, const char *name)
{
    struct search search = {.object = object, .name = name};
    dl_iterate_phdr(visit, &search);
    return search.found;
}
