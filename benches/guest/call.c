/* Calls, indirect calls and an interpreter: code with many transfers. */
#include "bench.h"

static __attribute__((noinline, noclone)) unsigned fibonacci(unsigned n) {
    if (n < 2)
        return n;
    unsigned first = fibonacci(n - 1);
    OPAQUE(first);
    return first + fibonacci(n - 2);
}

/* fib(22) makes 2 * fib(23) - 1 calls. */
static uint64_t fib_call(void) { return fibonacci(22); }
enum { FIBONACCI_CALLS = 2 * 28657 - 1 };

#define FUNCTION(number, operation)                                                                \
    static __attribute__((noinline)) uint32_t function##number(uint32_t value) { return operation; }
FUNCTION(0, value + 1)
FUNCTION(1, value ^ 0x55)
FUNCTION(2, value * 3)
FUNCTION(3, value - 7)
FUNCTION(4, value << 1 | value >> 31)
FUNCTION(5, ~value)
FUNCTION(6, value + (value >> 3))
FUNCTION(7, value ^ value >> 5)

enum { CALLS = 1 << 16 };

static uint64_t icall(void) {
    static uint32_t (*volatile const functions[8])(uint32_t) = {
        function0, function1, function2, function3, function4, function5, function6, function7,
    };
    uint32_t value = 1, random = 9;
    for (int call = 0; call < CALLS; call++)
        value = functions[next_random(&random) & 7](value);
    return value;
}

/* A register machine: each instruction has an operation, a destination and two sources. */
enum { LOAD, ADD, XOR, SHIFT, DECREMENT, JUMP_IF, STOP };
struct code {
    uint8_t operation, to, left, right;
};

static const struct code program[] = {
    {LOAD, 0, 0, 0}, {ADD, 1, 1, 0}, {XOR, 2, 2, 1},       {SHIFT, 3, 2, 3},
    {ADD, 1, 1, 3},  {XOR, 1, 1, 2}, {DECREMENT, 4, 4, 0}, {JUMP_IF, 0, 4, 0},
    {STOP, 0, 0, 0},
};
enum { LOOPS = 8192 };

static uint64_t interp(void) {
    static const void *const operations[] = {&&load, &&add, &&xor, &&shift, &&decrement, &&jump_if, &&stop};
    uint32_t r[8] = {0, 1, 2, 3, LOOPS};
    const struct code *at = program;
#define NEXT goto *operations[(++at)->operation]
    goto *operations[at->operation];
load:
    r[at->to] = 12345;
    NEXT;
add:
    r[at->to] = r[at->left] + r[at->right];
    NEXT;
xor:
    r[at->to] = r[at->left] ^ r[at->right];
    NEXT;
shift:
    r[at->to] = r[at->left] >> at->right;
    NEXT;
decrement:
    r[at->to]--;
    NEXT;
jump_if:
    if (r[at->left]) {
        at = program;
        goto *operations[at->operation];
    }
    NEXT;
stop:
    return mix(r[1], r[2]);
}

const struct row call_rows[] = {
    {"int", "interp", 8 * LOOPS, interp},
    {"int", "fib_call", FIBONACCI_CALLS, fib_call},
    {"int", "icall", CALLS, icall},
    {0},
};
