#include <string.h>

#include "check.h"
#include "config/config.h"
#include "config/quota.h"

static const char *nothing(const char *name)
{
    (void)name;
    return NULL;
}

static const char *some(const char *name)
{
    if (strcmp(name, "CUDA_DEVICE_MEMORY_LIMIT") == 0) return "10m";
    if (strcmp(name, "CUDA_DEVICE_MEMORY_LIMIT_1") == 0) return "20m";
    if (strcmp(name, "CUDA_DEVICE_MEMORY_LIMIT_2") == 0) return "0";
    if (strcmp(name, "CUDA_DEVICE_SM_LIMIT") == 0) return "50";
    if (strcmp(name, "CUDA_DEVICE_SM_LIMIT_1") == 0) return "150";
    if (strcmp(name, "GPU_CORE_UTILIZATION_POLICY") == 0) return "FORCE";
    return NULL;
}

static void amounts(void)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } cases[] = {
        {"1", 1},
        {"1k", 1024},
        {"1KB", 1024},
        {"1KiB", 1024},
        {"3Mi", 3 << 20},
        {"2g", UINT64_C(2) << 30},
        {"1t", UINT64_C(1) << 40},
        {"0x10", 16},
        {"010", 10},
        {"1.5g", UINT64_C(3) << 29},
        {"0.5K", 512},
        {"0.0009765625m", 1023}, /* six digits count: never more than is written */
        {"1.75", 1},
        {"  1", 1},
        {"1\t\n", 1},
        {"1 m ", 1 << 20},
        {"16777215.999999t", UINT64_C(18446744073708452104)},
        {"", 0},
        {"m", 0},
        {"-1", 0},
        {"1mm", 0},
        {"1 m m", 0},
        {"50%", 0},
        {"0.5", 0},
        {"0.0000001k", 0},
        {".5g", 0},
        {"1.g", 0},
        {"1.5.5g", 0},
        {"0x1.8g", 0},
        {"0x", 0},
        {"+1", 0},
        {" ", 0},
        {"16777216.5t", 0},
        {"18446744073709551615k", 0},
        {"99999999999999999999", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 0;
        CHECK((vgpu_config_parse_bytes(cases[i].text, &bytes) == 0) == (cases[i].bytes != 0));
        CHECK(bytes == cases[i].bytes);
    }
}

static void variables(void)
{
    struct vgpu_config config;
    vgpu_config_parse_environment(nothing, &config);
    CHECK(!vgpu_config_limits_anything(&config));
    CHECK(vgpu_config_limit(&config, "GPU-x", 0).memory_bytes == VGPU_UNLIMITED);
    CHECK(vgpu_config_limit(&config, "GPU-x", -1).memory_bytes == VGPU_UNLIMITED);
    vgpu_config_parse_environment(some, &config);
    CHECK(vgpu_config_limits_anything(&config) && config.core_policy == VGPU_CORE_POLICY_FORCE);
    CHECK(vgpu_config_limit(&config, "GPU-x", 0).memory_bytes == 10 << 20);
    CHECK(vgpu_config_limit(&config, "GPU-x", 1).memory_bytes == 20 << 20);
    CHECK(vgpu_config_limit(&config, "GPU-x", 2).memory_bytes == 10 << 20);
    CHECK(vgpu_config_limit(&config, "GPU-x", 0).core_percent == 50);
    CHECK(vgpu_config_limit(&config, "GPU-x", 1).core_percent == 100);
    CHECK(vgpu_config_limit(&config, "GPU-x", VGPU_MAX_DEVICES).memory_bytes == 0); /* no place in the region */
}

static void file(void)
{
    static const char text[] = "hami-limits 1\npolicy disable\noversubscribe 1\ndevice GPU-a memory_bytes 5 core_percent 30\n"
                               "device GPU-b core_percent 200 memory_bytes 0\ndevice GPU-c memory_bytes x\ndevice\nregion here\n"
                               "region /a/b.cache\nunknown 1";
    struct vgpu_config config;
    CHECK(vgpu_config_parse_file(text, sizeof text - 1, &config) == 0);
    CHECK(strcmp(config.region_path, "/a/b.cache") == 0);
    CHECK(config.core_policy == VGPU_CORE_POLICY_DISABLE && config.oversubscribe && config.device_count == 3);
    CHECK(vgpu_config_limit(&config, "GPU-a", 7).memory_bytes == 5 && vgpu_config_limit(&config, "GPU-a", 7).core_percent == 30);
    CHECK(vgpu_config_limit(&config, "GPU-b", 0).memory_bytes == VGPU_UNLIMITED);
    CHECK(vgpu_config_limit(&config, "GPU-b", 0).core_percent == 100);
    CHECK(vgpu_config_limit(&config, "GPU-c", 0).memory_bytes == 0);
    CHECK(vgpu_config_limit(&config, "GPU-", 0).memory_bytes == 0);
    CHECK(vgpu_config_limit(&config, "GPU-a", -1).memory_bytes == 0);
    CHECK(vgpu_config_limit(&config, "GPU-c", 0).core_percent == 1); /* nor does a program that has memory run freely */
    /* Every beginning of the file is either refused or allows no more than the whole. */
    for (size_t length = 0; length < sizeof text; length++) {
        struct vgpu_config part;
        if (vgpu_config_parse_file(text, length, &part) != 0) CHECK(part.device_count == 0 && vgpu_config_limits_anything(&part));
    }
}

static void blocks(void)
{
    enum { NOW_S = 1000000 };
    static const struct {
        const char *line;
        int64_t ms;
    } cases[] = {
        {"priority_block 0", 0},
        {"priority_block 0 1000010", 0},
        {"priority_block 1", VGPU_BLOCK_MS}, /* an older agent's */
        {"priority_block 1 never", VGPU_BLOCK_MS},
        {"priority_block 1 1000010", 10000},
        {"priority_block 1 1000030", VGPU_BLOCK_MS},
        {"priority_block 1 18446744073709551615", VGPU_BLOCK_MS},
        {"priority_block 1 1000000", 0},
        {"priority_block 1 1", 0},
        {"priority_block 1 1000010\npriority_block 0", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct vgpu_config config;
        char text[128];
        const int length = snprintf(text, sizeof text, "hami-limits 1\n%s\n", cases[i].line);
        CHECK(vgpu_config_parse_file(text, (size_t)length, &config) == 0);
        CHECK(vgpu_config_blocks_ms(&config, (int64_t)NOW_S * 1000 + 999) == cases[i].ms);
    }
}

int main(void)
{
    blocks();
    amounts();
    variables();
    file();
    return 0;
}
