/* What the rows of the benchmark share. */
#pragma once
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

/* One row of the table. run() does `ops` operations and returns a checksum that is the same at
   every call and on every machine, or UNAVAILABLE. Its first call is not timed, so it may prepare
   what later calls use. */
struct row {
    const char *group;
    const char *name;
    unsigned ops;
    uint64_t (*run)(void);
};

/* The machine lacks what the row needs. */
#define UNAVAILABLE UINT64_MAX

/* Each group is an array that ends with a row without name. */
extern const struct row int_rows[], call_rows[], memory_rows[], chase_rows[], fp_rows[], fp_sse2_rows[],
    long_double_rows[], simd_rows[], sys_rows[], process_rows[], paging_rows[], jit_rows[], job_rows[];

/* Zeroed memory on page boundaries, with its pages present. Ends the program if there is none. */
void *pages(size_t bytes);
/* Ends the program with a message, for calls that cannot fail on a working machine. */
void die(const char *what) __attribute__((noreturn));

/* Adds a value to a checksum. */
static inline uint64_t mix(uint64_t sum, uint64_t value) {
    sum ^= value + 0x9e3779b97f4a7c15u + (sum << 6) + (sum >> 2);
    return sum;
}

/* The next of a sequence of pseudo-random numbers (xorshift). */
static inline uint32_t next_random(uint32_t *state) {
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

/* The compiler must assume that the value is used and may have changed. */
#define OPAQUE(value) __asm__ volatile("" : "+r"(value)::"memory")
