/* Integer computations. */
#include "bench.h"
#include <stdlib.h>
#include <string.h>

enum { SIEVE = 1 << 20 };

static uint64_t sieve(void) {
    static uint8_t composite[SIEVE];
    unsigned count = 0;
    memset(composite, 0, sizeof composite);
    for (unsigned number = 2; number < SIEVE; number++) {
        if (composite[number])
            continue;
        count++;
        for (uint64_t multiple = (uint64_t)number * number; multiple < SIEVE; multiple += number)
            composite[multiple] = 1;
    }
    return count;
}

enum { TEXT = 64 << 10 };

static const uint8_t *text(void) {
    static uint8_t bytes[TEXT];
    if (!bytes[0]) {
        uint32_t random = 1;
        for (int index = 0; index < TEXT; index++)
            bytes[index] = next_random(&random) | 1;
    }
    return bytes;
}

static uint64_t crc32(void) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t rest = byte;
            for (int bit = 0; bit < 8; bit++)
                rest = rest >> 1 ^ (rest & 1 ? 0xedb88320u : 0);
            table[byte] = rest;
        }
    const uint8_t *bytes = text();
    uint32_t sum = ~0u;
    for (int index = 0; index < TEXT; index++)
        sum = sum >> 8 ^ table[(sum ^ bytes[index]) & 0xff];
    return ~sum;
}

/* The constants of FIPS 180-4: the fractions of the cube roots of the first primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void sha256_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t a = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice + round_constants[i] + w[i];
        uint32_t b = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
        s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + a;
        s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = a + b;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

static uint64_t sha256(void) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *bytes = text();
    for (int at = 0; at < TEXT; at += 64)
        sha256_block(state, bytes + at);
    return (uint64_t)state[0] << 32 | state[7];
}

enum { SORTED = 1 << 20 };

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static uint64_t qsort_1m(void) {
    static uint32_t *numbers;
    if (!numbers)
        numbers = pages(SORTED * sizeof *numbers);
    uint32_t random = 7;
    for (int index = 0; index < SORTED; index++)
        numbers[index] = next_random(&random);
    qsort(numbers, SORTED, sizeof *numbers, compare);
    return mix(numbers[0], numbers[SORTED / 3]);
}

enum { STEPS = 1 << 16 };

static uint64_t div32(void) {
    uint32_t sum = 0, dividend = 0xfedcba98;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t divisor = (step & 0xff) + 3;
        OPAQUE(divisor);
        sum += dividend / divisor;
        dividend ^= sum;
    }
    return sum;
}

static uint64_t lock_xadd(void) {
    static uint32_t counter;
    counter = 0;
    uint32_t sum = 0;
    for (uint32_t step = 0; step < STEPS; step++)
        sum += __atomic_fetch_add(&counter, step, __ATOMIC_SEQ_CST);
    return sum;
}

static uint64_t u64_mix(void) {
    uint64_t sum = 1;
    for (uint32_t step = 0; step < STEPS; step++) {
        sum = (sum ^ sum >> 29) * 0xbf58476d1ce4e5b9u + step;
        OPAQUE(step);
    }
    return sum & INT64_MAX;
}

const struct row int_rows[] = {
    {"int", "sieve", SIEVE, sieve},
    {"int", "crc32", TEXT, crc32},
    {"int", "sha256", TEXT, sha256},
    {"int", "qsort1M", SORTED, qsort_1m},
    {"int", "div32", STEPS, div32},
    {"int", "lock_xadd", STEPS, lock_xadd},
    {"int", "u64mix", STEPS, u64_mix},
    {0},
};
