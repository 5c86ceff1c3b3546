# SHEET.COM: works through a table of figures and shows totals, in the way of a spreadsheet; as the small
# system's command `calc`.
.include "layout.inc"

.section .start, "ax"
.code16
    cld
    call do_calc
    jmp finish
