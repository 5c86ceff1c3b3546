/* Computations with vector instructions. */
#include "bench.h"
#include <immintrin.h>

enum { FLOATS = 4096, ROUNDS = 16 };

static float x[FLOATS] __attribute__((aligned(64))), y[FLOATS] __attribute__((aligned(64)));

static void prepare(void) {
    for (int index = 0; index < FLOATS; index++) {
        x[index] = index % 17;
        y[index] = 1;
    }
}

static uint64_t saxpy_sse2(void) {
    prepare();
    const __m128 factor = _mm_set1_ps(0.5f);
    for (int round = 0; round < ROUNDS; round++)
        for (int index = 0; index < FLOATS; index += 4) {
            __m128 sum = _mm_add_ps(_mm_mul_ps(factor, _mm_load_ps(x + index)), _mm_load_ps(y + index));
            _mm_store_ps(y + index, sum);
        }
    return (uint64_t)y[5] + (uint64_t)y[FLOATS - 1];
}

static uint64_t int_sse2(void) {
    static uint32_t numbers[FLOATS] __attribute__((aligned(64)));
    for (int index = 0; index < FLOATS; index++)
        numbers[index] = index * 2654435761u;
    __m128i sum = _mm_setzero_si128();
    for (int round = 0; round < ROUNDS; round++)
        for (int index = 0; index < FLOATS; index += 4) {
            __m128i value = _mm_load_si128((const __m128i *)(numbers + index));
            sum = _mm_add_epi32(_mm_xor_si128(sum, value), _mm_slli_epi32(value, 3));
            sum = _mm_shuffle_epi32(sum, 0x39);
        }
    uint32_t lanes[4];
    _mm_storeu_si128((__m128i *)lanes, sum);
    return mix(mix(lanes[0], lanes[1]), mix(lanes[2], lanes[3])) & INT64_MAX;
}

__attribute__((target("avx2,fma"))) static void saxpy_avx2_rounds(void) {
    const __m256 factor = _mm256_set1_ps(0.5f);
    for (int round = 0; round < ROUNDS; round++)
        for (int index = 0; index < FLOATS; index += 8) {
            __m256 sum = _mm256_fmadd_ps(factor, _mm256_load_ps(x + index), _mm256_load_ps(y + index));
            _mm256_store_ps(y + index, sum);
        }
}

static uint64_t saxpy_avx2(void) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return UNAVAILABLE;
    prepare();
    saxpy_avx2_rounds();
    return (uint64_t)y[5] + (uint64_t)y[FLOATS - 1];
}

const struct row simd_rows[] = {
    {"simd", "saxpy_sse2", ROUNDS *FLOATS, saxpy_sse2},
    {"simd", "int_sse2", ROUNDS *FLOATS, int_sse2},
    {"simd", "saxpy_avx2", ROUNDS *FLOATS, saxpy_avx2},
    {0},
};
