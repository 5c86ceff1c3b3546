/* Copying and filling memory: with the C library, and with string instructions. */
#include "bench.h"
#include <string.h>

enum { LARGE = 64 << 20, SMALL = 64 << 10, PAGE = 4096 };

static uint8_t *large(void) {
    static uint8_t *memory;
    if (!memory)
        memory = pages(2 * LARGE + (1 << 20));
    return memory;
}

static uint64_t copy_large(size_t to) {
    uint8_t *memory = large();
    memory[PAGE] = 77;
    memcpy(memory + to, memory, LARGE);
    return memory[to + PAGE];
}

/* The distance to the target is a power of two: both use the same sets of every cache and TLB. */
static uint64_t memcpy_64m(void) { return copy_large(LARGE); }
static uint64_t memcpy_64m_skew(void) { return copy_large(LARGE + 37 * PAGE); }

static uint64_t memset_64m(void) {
    uint8_t *memory = large();
    memset(memory, 5, LARGE);
    return memory[LARGE - 1];
}

static uint8_t small[2][SMALL] __attribute__((aligned(4096)));

static uint64_t rep_movsb(void) {
    void *to = small[0], *from = small[1];
    size_t count = SMALL;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    return count;
}

static uint64_t rep_movsd(void) {
    void *to = small[0], *from = small[1];
    size_t count = SMALL / 4;
    __asm__ volatile("rep movsl" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    return count;
}

static uint64_t rep_stosd(void) {
    void *to = small[0];
    size_t count = SMALL / 4;
    __asm__ volatile("rep stosl" : "+D"(to), "+c"(count) : "a"(0x1020304) : "memory");
    return count;
}

static uint64_t strlen_64k(void) {
    memset(small[1], 'x', SMALL - 1);
    small[1][SMALL - 1] = 0;
    size_t length = 0;
    for (int round = 0; round < 16; round++) {
        const char *text = (const char *)small[1];
        OPAQUE(text);
        length += strlen(text);
    }
    return length;
}

/* An operation is a page; for the small sizes it is a kibibyte. */
const struct row memory_rows[] = {
    {"mem", "memcpy64M", LARGE / PAGE, memcpy_64m},
    {"mem", "memcpy64M_skew", LARGE / PAGE, memcpy_64m_skew},
    {"mem", "memset64M", LARGE / PAGE, memset_64m},
    {"mem", "repmovsb64K", SMALL / 1024, rep_movsb},
    {"mem", "repmovsd64K", SMALL / 1024, rep_movsd},
    {"mem", "repstosd64K", SMALL / 1024, rep_stosd},
    {"mem", "strlen64K", 16 * SMALL / 1024, strlen_64k},
    {0},
};
