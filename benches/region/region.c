/* What a second translator tier that forms regions would gain for an interpreter's loop, by hand.
 *
 * A bytecode interpreter with computed jumps runs one loop of six operations, in five forms:
 *
 *   native         as gcc compiles it
 *   checks         each memory access has the check of its part that translated code has
 *   jumps          each computed jump looks its target up as translated code does: an entry of
 *                  a table of 2^18, whose tag and slide are compared
 *   translated     both: what the translator emits today, without the registers that it lacks
 *   region         one path of the loop as a region: each computed jump is a comparison with the
 *                  target that it had when the region was formed, and a register is checked once
 *
 *     gcc -O2 -mbmi2 -fno-gcse -fno-crossjumping -o region region.c && ./region
 *
 * It needs a processor with BMI2 and a position-independent executable (gcc's default on Debian),
 * because the checks are those of programs in the parts that Linux gives to such programs.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { XORSHIFT, LOAD, ADD, STORE, LOOP, HALT, OPERATIONS };
enum { TABLE_BITS = 18, ROUNDS = 1000000, PER_ROUND = 6, REPETITIONS = 25 };

/* An entry of the table of branch targets. */
struct entry {
    uint64_t tag, host, slide, negative_slide;
};
static struct entry *table;
static uint64_t slide;

static struct entry *entry_of(uint64_t target) {
    return &table[target >> 2 & ((1 << TABLE_BITS) - 1)];
}

/* The check that an address lies in a common part (crates/tlb/src/shadow_windows/anchors.rs). */
#define CHECKS 0x7ffff000UL
#define CHECK(pointer)                                                                             \
    {                                                                                              \
        uint64_t page;                                                                             \
        __asm__ volatile("sarx %2, %1, %0\n\tmovzbl 0x7ffff000(%0), %k0"                           \
                         : "=&r"(page)                                                             \
                         : "r"((uint64_t)(pointer)), "r"(12UL));                                   \
    }
#define NO_CHECK(pointer)

#define LABELS static void *labels[] = {&&xorshift, &&load, &&add, &&store, &&loop, &&halt}

/* Stores the labels' addresses as targets. */
#define ENTER_TARGETS                                                                              \
    for (int operation = 0; operation < OPERATIONS; operation++) {                                 \
        uint64_t target = (uint64_t)labels[operation];                                             \
        *entry_of(target) = (struct entry){-target, target, slide, -slide};                        \
    }

#define JUMP goto *labels[*code++]
#define LOOKED_UP_JUMP(check)                                                                      \
    {                                                                                              \
        check(code);                                                                               \
        check(&labels[*code]);                                                                     \
        uint64_t target = (uint64_t)labels[*code++];                                               \
        struct entry *entry = entry_of(target);                                                    \
        if (__builtin_expect(entry->tag + target != 0, 0) ||                                       \
            __builtin_expect(entry->slide != slide, 0))                                            \
            abort();                                                                               \
        goto *(void *)entry->host;                                                                 \
    }

#define DO_XORSHIFT                                                                                \
    {                                                                                              \
        uint64_t x = registers[code[0]];                                                           \
        x ^= x << 13;                                                                              \
        x ^= x >> 7;                                                                               \
        registers[code[0]] = x ^ x << 17;                                                          \
        code += 2;                                                                                 \
    }
#define PLACE ((uint64_t *)(memory + (registers[code[1]] & 4088)))
#define DO_LOAD(check)                                                                             \
    {                                                                                              \
        uint64_t *place = PLACE;                                                                   \
        check(place);                                                                              \
        registers[code[0]] = *place;                                                               \
        code += 2;                                                                                 \
    }
#define DO_STORE(check)                                                                            \
    {                                                                                              \
        uint64_t *place = PLACE;                                                                   \
        check(place);                                                                              \
        *place = registers[code[0]];                                                               \
        code += 2;                                                                                 \
    }
#define DO_ADD                                                                                     \
    {                                                                                              \
        registers[code[0]] += registers[code[1]];                                                  \
        code += 2;                                                                                 \
    }

#define BOTH(check) check(code); check(registers)
#define INTERPRETER(check, jump)                                                                   \
    const uint8_t *start = code;                                                                   \
    jump;                                                                                          \
    xorshift: BOTH(check); DO_XORSHIFT; jump;                                                      \
    load: BOTH(check); DO_LOAD(check); jump;                                                       \
    add: BOTH(check); DO_ADD; jump;                                                                \
    store: BOTH(check); DO_STORE(check); jump;                                                     \
    loop: BOTH(check); if (--registers[code[0]]) code = start; else code += 2; jump;               \
    halt: return registers[1]

#define FORM(name)                                                                                 \
    __attribute__((noinline)) static uint64_t name(const uint8_t *code, uint64_t *registers,       \
                                                   uint8_t *memory)

FORM(native) {
    LABELS;
    INTERPRETER(NO_CHECK, JUMP);
}

FORM(checks) {
    LABELS;
    INTERPRETER(CHECK, JUMP);
}

FORM(jumps) {
    LABELS;
    ENTER_TARGETS;
    INTERPRETER(NO_CHECK, LOOKED_UP_JUMP(NO_CHECK));
}

FORM(translated) {
    LABELS;
    ENTER_TARGETS;
    INTERPRETER(CHECK, LOOKED_UP_JUMP(CHECK));
}

/* Leaves the region if the next operation differs from the one when the region was formed. */
#define GUARD(label)                                                                               \
    if (__builtin_expect(labels[*code++] != &&label, 0))                                           \
    abort()

FORM(region) {
    LABELS;
    const uint8_t *start = code;
    do {
        code = start;
        CHECK(code);
        CHECK(registers);
        CHECK(labels);
        GUARD(xorshift);
    xorshift:
        DO_XORSHIFT;
        GUARD(load);
    load:
        DO_LOAD(CHECK);
        GUARD(add);
    add:
        DO_ADD;
        GUARD(store);
    store:
        DO_STORE(CHECK);
        GUARD(add);
        DO_ADD;
        GUARD(loop);
    loop:;
    } while (--registers[code[0]]);
halt:
    return registers[1];
}

/* Maps the bytes that checks load, for `parts` parts of 512 GiB from part `first` on. */
static void map_checks(uint64_t first, uint64_t parts) {
    uint64_t pages = 1UL << 27;
    void *place = mmap((void *)(CHECKS + first * pages), parts * pages, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == MAP_FAILED) {
        perror("region: the place of the checks is taken");
        exit(1);
    }
}

static double nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(void) {
    static const uint8_t program[] = {XORSHIFT, 2, 0, LOAD, 3, 2, ADD,  1, 3, STORE, 1,
                                      2,        ADD, 1, 2,    LOOP, 0, 0, HALT,  0, 0};
    static const struct {
        const char *name;
        uint64_t (*run)(const uint8_t *, uint64_t *, uint8_t *);
    } forms[] = {{"native", native},
                 {"checks", checks},
                 {"jumps", jumps},
                 {"translated", translated},
                 {"region", region}};
    enum { FORMS = sizeof forms / sizeof *forms };
    table = calloc(1 << TABLE_BITS, sizeof *table);
    uint8_t *memory = malloc(8192);
    uint64_t *registers = malloc(64);
    if (!table || !memory || !registers)
        return 1;
    map_checks(0xaa, 3);
    map_checks(0xfd, 3);
    double best[FORMS];
    uint64_t results[FORMS];
    for (int repetition = 0; repetition < REPETITIONS; repetition++)
        for (int form = 0; form < FORMS; form++) {
            memset(memory, 1, 8192);
            memset(registers, 0, 64);
            registers[0] = ROUNDS;
            registers[2] = 88172645463325252;
            double begun = nanoseconds();
            results[form] = forms[form].run(program, registers, memory);
            double taken = (nanoseconds() - begun) / ROUNDS / PER_ROUND;
            if (!repetition || taken < best[form])
                best[form] = taken;
        }
    for (int form = 0; form < FORMS; form++) {
        printf("%-12s %5.2f ns an operation, %.2f of native\n", forms[form].name, best[form],
               best[form] / best[0]);
        if (results[form] != results[0])
            return 1;
    }
    return 0;
}
