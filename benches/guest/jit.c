/* Programs that write their own code. */
#include "bench.h"
#include <string.h>
#include <sys/mman.h>

enum { CODE = 64 << 10, PATCHES = 256, INSTRUCTIONS = 2048 };

typedef uint32_t (*function)(void);

static uint8_t *code(void) {
    static uint8_t *memory;
    if (!memory) {
        memory = mmap(NULL, CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            die("mmap");
    }
    return memory;
}

static function as_function(uint8_t *start) {
    function result;
    memcpy(&result, &start, sizeof result);
    return result;
}

/* Changes the constant of a MOV EAX, imm32, then calls it. */
static uint64_t patch_call(void) {
    uint8_t *at = code();
    memcpy(at, "\xb8\0\0\0\0\xc3", 6);
    uint32_t sum = 0;
    for (uint32_t patch = 0; patch < PATCHES; patch++) {
        memcpy(at + 1, &patch, 4);
        sum += as_function(at)();
    }
    return sum;
}

/* Writes ADD EAX, imm32 many times, at another place each time, and runs it `runs` times. */
static uint64_t generate(int runs) {
    static uint32_t generation;
    uint8_t *start = code() + 4096 + (generation++ & 3) * 12288, *at = start;
    memcpy(at, "\x31\xc0", 2);
    at += 2;
    for (uint32_t instruction = 0; instruction < INSTRUCTIONS; instruction++) {
        uint32_t value = instruction + generation * 3;
        *at = 0x05;
        memcpy(at + 1, &value, 4);
        at += 5;
    }
    *at = 0xc3;
    uint32_t sum = 0;
    for (int run = 0; run < runs; run++)
        sum = as_function(start)();
    return sum - 3 * INSTRUCTIONS * generation;
}

static uint64_t generate_run_1(void) { return generate(1); }
static uint64_t generate_run_100(void) { return generate(100); }

/* An operation is a patch with its call, or one instruction that is written and then run, once or a
   hundred times. */
const struct row jit_rows[] = {
    {"jit", "patch_call", PATCHES, patch_call},
    {"jit", "gen_run1_insn", INSTRUCTIONS, generate_run_1},
    {"jit", "gen_run100_insn", INSTRUCTIONS, generate_run_100},
    {0},
};
