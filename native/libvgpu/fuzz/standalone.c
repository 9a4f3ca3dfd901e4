/* Runs a fuzz target where there is no libFuzzer: random inputs, and changed copies of the files that are given.
 *
 *   fuzz_x RUNS SEED [FILE...]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 4096 };

int main(int count, char **argument)
{
    static uint8_t data[MOST];
    if (count < 3) return 2;
    unsigned int seed = (unsigned int)strtoul(argument[2], NULL, 10);
    for (long run = strtol(argument[1], NULL, 10); run > 0; run--) {
        size_t size = (size_t)rand_r(&seed) % (run % 8 == 0 ? MOST : 256);
        const char *sample = count > 3 && run % 4 != 0 ? argument[3 + rand_r(&seed) % (count - 3)] : NULL;
        FILE *file = sample != NULL ? fopen(sample, "re") : NULL;
        if (file != NULL) {
            size = fread(data, 1, MOST, file);
            fclose(file);
            for (int change = rand_r(&seed) % 8; change > 0 && size > 0; change--)
                data[(size_t)rand_r(&seed) % size] = (uint8_t)rand_r(&seed);
            if (run % 3 == 0 && size > 0) size = (size_t)rand_r(&seed) % size;
        } else {
            for (size_t i = 0; i < size; i++) data[i] = (uint8_t)rand_r(&seed);
        }
        /* A copy of exactly that size: reading past it is seen by the address sanitizer. */
        uint8_t *exact = malloc(size > 0 ? size : 1);
        if (exact == NULL) return 3;
        memcpy(exact, data, size);
        (void)LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    return 0;
}
