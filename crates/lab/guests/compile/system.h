/* What programs need from Linux without a C library: the entry, writing and exiting. */

#ifdef __x86_64__
static long system_call(long number, long first, const void *second, long third)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}
enum { WRITE = 1, EXIT = 60 };
#else
static long system_call(long number, long first, const void *second, long third)
{
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(first), "c"(second), "d"(third)
                     : "memory");
    return result;
}
enum { WRITE = 4, EXIT = 1 };
#endif

typedef unsigned int word;

static void print(word number)
{
    char text[12], *at = text + sizeof text;
    *--at = '\n';
    do
        *--at = '0' + number % 10;
    while (number /= 10);
    system_call(WRITE, 1, at, text + sizeof text - at);
}

/* What a program computes. */
static word result(void);

void _start(void)
{
    print(result());
    system_call(EXIT, 0, 0, 0);
}
