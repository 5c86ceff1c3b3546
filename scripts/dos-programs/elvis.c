/* What the editor elvis needs of DOS and of the BIOS, in place of its own files for other compilers. */

#include "config.h"
#include "vi.h"
#include <sys/stat.h>

/* The index of the attribute of displayed text: plain, reverse, bright, underlined, other. */
int vmode;
static char attributes[5] = { 0x07, 0x70, 0x0f, 0x01, 0x0f };

static unsigned bios_ax, bios_bx, bios_cx, bios_dx;

static bios()
{
#asm
    push bp
    push si
    push di
    push es
    mov ax,[_bios_ax]
    mov bx,[_bios_bx]
    mov cx,[_bios_cx]
    mov dx,[_bios_dx]
    int $10
    mov [_bios_cx],cx
    mov [_bios_dx],dx
    pop es
    pop di
    pop si
    pop bp
#endasm
}

/* Calls the BIOS: a function that scrolls has its attribute in BH, all others in BL. */
video(ax, cx, dx)
int ax, *cx, *dx;
{
    int attribute;

    attribute = attributes[vmode] & 0xff;
    bios_ax = ax;
    if ((ax & 0xff00) == 0x600 || (ax & 0xff00) == 0x700)
        bios_bx = attribute << 8;
    else
        bios_bx = attribute;
    bios_cx = cx ? *cx : 0;
    bios_dx = dx ? *dx : 0;
    bios();
    if (cx)
        *cx = bios_cx;
    if (dx)
        *dx = bios_dx;
}

int v_cols()
{
    return 80;
}

int v_rows()
{
    return 25;
}

/* Waits for a key; until then, DOS calls INT 28h. */
static int key()
{
#asm
    mov ax,#$0700
    int $21
    xor ah,ah
#endasm
}

int ttyread(keys, size)
char *keys;
int size;
{
    keys[0] = key();
    if (keys[0] == 0)
        keys[0] = '#';
    return 1;
}

/* Text files have a carriage return before each line feed. */
int tread(file, text, size)
int file, size;
char *text;
{
    int count, kept, i;

    do {
        count = read(file, text, size);
        for (kept = 0, i = 0; i < count; i++)
            if (text[i] != '\r' && text[i] != 26)
                text[kept++] = text[i];
    } while (count > 0 && kept == 0);
    return count < 0 ? count : kept;
}

int twrite(file, text, size)
int file, size;
char *text;
{
    int i, start;

    for (start = 0, i = 0; i < size; i++)
        if (text[i] == '\n') {
            write(file, text + start, i - start);
            write(file, "\r\n", 2);
            start = i + 1;
        }
    write(file, text + start, size - start);
    return size;
}

int stat(name, result)
char *name;
struct stat *result;
{
    int file;

    memset(result, 0, sizeof *result);
    result->st_mode = S_IFREG | S_IWRITE;
    if (name[0] == '.' && name[1] == 0)
        return 0;
    file = open(name, 0);
    if (file < 0)
        return -1;
    result->st_size = lseek(file, 0L, 2);
    close(file);
    return 0;
}

int access(name, mode)
char *name;
int mode;
{
    struct stat result;

    return stat(name, &result);
}

char *getenv(name)
char *name;
{
    return 0;
}

/* There are no wild cards, no other programs and no timeouts. */
char *wildcard(names)
char *names;
{
    return names;
}

int system() { return -1; }
int filter() { return -1; }
int rpipe() { return -1; }
int rpclose() { return -1; }
int rename() { return -1; }
int chdir() { return -1; }
int getpid() { return 1; }
int signal() { return 0; }
int alarm() { return 0; }
int sleep() { return 0; }
void perror(text) char *text; { }
