/* Runs each function of `vector_tests` once on every set of registers and prints what changed;
   MXCSR, whose flags say more, only if SHOW_MXCSR is defined. It prints bits, never values, so that
   two runs can be compared byte by byte. It is built as a static, position-dependent 32-bit
   program, so that addresses are the same everywhere. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct state {
    uint8_t ymm[8][32];
    uint8_t mm[8][8];
    uint8_t memory[4][32];
    uint32_t eax, ecx, ebx, flags, mxcsr;
};

extern const struct { void (*code)(void); const char *name; } vector_tests[];

/* The assembly below names these by their addresses. */
static uint8_t gathered[8192] __attribute__((aligned(64)));
static struct state before __attribute__((aligned(64), used));
static struct state after __attribute__((aligned(64), used));
static uint8_t memory[4][32] __attribute__((aligned(64), used));
static void (*code)(void) __attribute__((used));

/* edx points to the operand in memory (32 bytes after its start), edi to the target of MASKMOV, esi
   to the middle of the data that is gathered. */
void run_one(void);
asm(".text\n"
    "run_one:\n"
    "  pushal\n"
    ".irp n,0,1,2,3,4,5,6,7\n"
    "  vmovdqu before+32*\\n, %ymm\\n\n"
    "  movq before+256+8*\\n, %mm\\n\n"
    ".endr\n"
    "  ldmxcsr before+464\n"
    "  mov before+448, %eax\n"
    "  mov before+452, %ecx\n"
    "  mov before+456, %ebx\n"
    "  mov $memory, %edx\n"
    "  mov $memory+64, %edi\n"
    "  mov $gathered+4096, %esi\n"
    "  pushl before+460\n"
    "  popfl\n"
    "  call *code\n"
    "  pushfl\n"
    "  popl after+460\n"
    "  mov %eax, after+448\n"
    "  mov %ecx, after+452\n"
    "  mov %ebx, after+456\n"
    "  stmxcsr after+464\n"
    ".irp n,0,1,2,3,4,5,6,7\n"
    "  vmovdqu %ymm\\n, after+32*\\n\n"
    "  movq %mm\\n, after+256+8*\\n\n"
    ".endr\n"
    "  emms\n"
    "  vzeroupper\n"
    "  cld\n"
    "  popal\n"
    "  ret\n");

/* The line of an instruction that cannot be executed says so. */
static sigjmp_buf abandoned;
static void abandon(int signal) { siglongjmp(abandoned, signal); }

static void show(const char *name, int number, const uint8_t *bytes, int count)
{
    printf(" %s%d=", name, number);
    while (count--)
        printf("%02x", bytes[count]);
}

static uint32_t noise(void)
{
    static uint32_t state = 0x2545f491;
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
}

/* Integers, single precision with zeros, infinities, NaNs and denormals among them, and the same in
   double precision; then both with other rounding, denormals treated as zeros and results flushed
   to zero. */
static void fill(int set)
{
    static const float singles[] = {
        2.0f, -1.0f, 4.8f, 0.0f, 3e30f, -42.0f, 5e6f, 7.5f, -0.0f, 1e-40f, 0.5f,
        __builtin_inff(), -8.3f, __builtin_nanf(""), 2147483648.0f, 1e-30f };
    uint8_t *bytes = before.ymm[0];

    for (unsigned at = 0; at < sizeof before.ymm + sizeof before.mm + sizeof before.memory; at += 8) {
        uint32_t words[2] = { noise(), noise() };
        if (set == 1 || set == 3) {
            memcpy(words, &singles[noise() % 16], 4);
            memcpy(words + 1, &singles[noise() % 16], 4);
        } else if (set) {
            double value = singles[noise() % 16];
            memcpy(words, &value, 8);
        }
        memcpy(bytes + at, words, 8);
    }
    /* The indices of gathers, which must stay inside `gathered`. */
    for (int i = 0; i < 8; i++) {
        uint32_t narrow = noise() % 512 - 256;
        memcpy(before.ymm[4] + 4 * i, &narrow, 4);
        uint64_t wide = (int64_t)(int32_t)(noise() % 512 - 256);
        if (i < 4)
            memcpy(before.ymm[5] + 8 * i, &wide, 8);
    }
    before.eax = set ? noise() : 5;
    before.ecx = noise();
    before.ebx = noise();
    before.flags = 0x202 | (set ? 0 : 0x8d5);
    static const uint32_t controls[] = { 0x1f80, 0x1f80, 0x1f80, 0xdfc0, 0x3f80 };
    before.mxcsr = controls[set];
}

int main(void)
{
    signal(SIGILL, abandon);
    signal(SIGSEGV, abandon);
    signal(SIGFPE, abandon);
    for (unsigned at = 0; at < sizeof gathered; at += 4) {
        uint32_t word = noise();
        memcpy(gathered + at, &word, 4);
    }
    for (volatile int set = 0; set < 5; set++) {
        fill(set);
        for (volatile int n = 0; vector_tests[n].code; n++) {
            memcpy(memory, before.memory, sizeof memory);
            code = vector_tests[n].code;
            printf("%d %s:", set, vector_tests[n].name);
            int signal = sigsetjmp(abandoned, 1);
            if (signal) {
                printf(" signal %d\n", signal);
                continue;
            }
            run_one();
            memcpy(after.memory, memory, sizeof memory);
            for (int i = 0; i < 8; i++)
                if (memcmp(before.ymm[i], after.ymm[i], 32))
                    show("ymm", i, after.ymm[i], 32);
            for (int i = 0; i < 8; i++)
                if (memcmp(before.mm[i], after.mm[i], 8))
                    show("mm", i, after.mm[i], 8);
            for (int i = 0; i < 4; i++)
                if (memcmp(before.memory[i], after.memory[i], 32))
                    show("memory", i, after.memory[i], 32);
            printf(" %x %x %x %x", after.eax, after.ecx, after.ebx, after.flags & 0x8d5);
#ifdef SHOW_MXCSR
            printf(" %x", after.mxcsr);
#endif
            putchar('\n');
        }
    }
    return 0;
}
