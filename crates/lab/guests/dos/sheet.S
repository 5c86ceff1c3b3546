# SHEET.COM: computes and prints totals of a table of figures, like a spreadsheet and like the small
# system's command `calc`.
.include "layout.inc"

.section .start, "ax"
.code16
    cld
    call do_calc
    jmp finish
