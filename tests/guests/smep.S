# smep - CR4.SMEP: the supervisor fetches nothing from pages of the user
#
# The guest itself lies in pages of the supervisor; WINDOW's one page table is rewritten.
.include "guest.inc"
.include "window.inc"

.set CR4_SMEP, 1 << 20
.set CR0_ET, 0x10
.set BACK, 0x81                  # how ring 3 comes back

.macro SMEP_ON
    mov eax, cr4
    or eax, CR4_SMEP
    mov cr4, eax
.endm
.macro SMEP_OFF
    mov eax, cr4
    and eax, ~CR4_SMEP
    mov cr4, eax
.endm
# FETCH_FAULT address, error, "fact": the last TRY call has faulted in its target.
.macro FETCH_FAULT address, error, fact
    EXPECT [fault_vector], EXC_PF, "\fact faults"
    EXPECT [fault_error], \error, "with this error code"
    EXPECT [fault_eip], \address, "at the target"
    EXPECT [fault_cr2], \address, "which cr2 names"
    add esp, 4                   # what the call pushed
.endm

main:
    mov eax, cr0
    EXPECT eax, CR0_PE|CR0_ET, "there is no paging yet"
    xor eax, eax
    cpuid
    cmp eax, 7
    jb 1f
    mov eax, 7
    xor ecx, ecx
    cpuid
    test ebx, 1 << 7
    jnz 2f
1:  mov eax, cr4
    or eax, CR4_SMEP
    TRY mov cr4, eax
    EXPECT_FAULT EXC_GP, 0, "CR4.SMEP is reserved, as cpuid does not offer it"
    ret
2:  MAKE_TABLES P|W
    mov dword ptr [LARGE_PDE], 0x400000 + (P|W|U|PS)
    mov eax, cr4
    or eax, CR4_PSE
    mov cr4, eax
    GATE BACK, back, 0xEE
    mov dword ptr [FRAME_A], 0x000001B8      # mov eax, 1; ret
    mov word ptr [FRAME_A+4], 0xC300
    mov word ptr [FRAME_A+0x100], 0x81CD     # int BACK
    mov eax, cr0
    or eax, CR0_PG
    mov cr0, eax
    call supervisor
    call user
    call straddling
    call other_pages
    call while_running
    SMEP_OFF
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    ret

supervisor:
    PTE 0, FRAME_A+(P|W|U)
    PTE 1, FRAME_A+(P|W)
    PTE 2, 0
    mov ecx, WINDOW
    xor eax, eax
    call ecx
    EXPECT eax, 1, "without SMEP ring 0 runs code in a page of the user"
    SMEP_ON
    TRY call ecx
    FETCH_FAULT WINDOW, PF_PRESENT|PF_FETCH, "with it, at once, the call"
    mov ebx, WINDOW+0x1000
    xor eax, eax
    call ebx
    EXPECT eax, 1, "by its supervisor page the code runs"
    mov ebx, WINDOW+0x2000
    TRY call ebx
    FETCH_FAULT WINDOW+0x2000, PF_FETCH, "a call to an absent page"
    mov eax, [WINDOW]
    EXPECT eax, 0x000001B8, "data of the user may be read"
    mov [WINDOW], eax
    EXPECT [WINDOW], 0x000001B8, "and written"
    SMEP_OFF
    xor eax, eax
    call ecx
    EXPECT eax, 1, "without SMEP it runs again"
    SMEP_ON
    TRY call ecx
    FETCH_FAULT WINDOW, PF_PRESENT|PF_FETCH, "and with it not"
    ret

# IN_RING3 address: runs what is there until it comes back by INT BACK, or faults.
.macro IN_RING3 address
    mov [kernel_esp], esp
    mov dword ptr [fault_vector], NONE
    mov dword ptr [resume_at], offset user_\@
    push DATA3
    push WINDOW+0x1000
    pushfd
    push CODE3
    push \address
    mov dword ptr [back_to], offset user_\@
    iretd
user_\@:
.endm
back:
    push DATA
    pop ds
    push DATA
    pop es
    mov esp, [kernel_esp]
    mov dword ptr [resume_at], 0
    jmp [back_to]

user:
    IN_RING3 WINDOW+0x100
    EXPECT [fault_vector], NONE, "ring 3 runs its own pages"
    GATE EXC_PF, user_fault
    IN_RING3 WINDOW+0x1100
    GATE EXC_PF, page_fault
    EXPECT [fault_error], PF_PRESENT|PF_USER|PF_FETCH, "and not the supervisor's"
    ret
user_fault:
    push DATA
    pop ds
    pop [fault_error]
    jmp back
page_fault:
    push EXC_PF
    jmp exception

straddling:
    PTE 4, FRAME_A+(P|W)
    PTE 5, FRAME_B+(P|W|U)
    mov word ptr [FRAME_A+0xFFE], 0x44B8     # mov eax, 11223344h; ret
    mov dword ptr [FRAME_B], 0xC3112233
    mov ecx, WINDOW+0x4FFE
    TRY call ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "an instruction whose second page is the user's faults"
    EXPECT [fault_eip], WINDOW+0x4FFE, "at its start"
    EXPECT [fault_cr2], WINDOW+0x5000, "for the second page"
    add esp, 4
    PTE 5, FRAME_B+(P|W)
    call ecx
    EXPECT eax, 0x11223344, "and runs when that is the supervisor's"
    ret

other_pages:
    mov dword ptr [WINDOW_PDE], TABLE + (P|W)
    mov eax, cr3
    mov cr3, eax
    mov ecx, WINDOW
    xor eax, eax
    call ecx
    EXPECT eax, 1, "a user page in a table of the supervisor is the supervisor's"
    mov dword ptr [WINDOW_PDE], TABLE + (P|W|U)
    mov eax, cr3
    mov cr3, eax
    mov ecx, LARGE+0x100000      # FRAME_A
    TRY call ecx
    FETCH_FAULT LARGE+0x100000, PF_PRESENT|PF_FETCH, "a call to a 4 MiB page of the user"
    mov dword ptr [LARGE_PDE], 0x400000 + (P|W|PS)
    invlpg [LARGE]
    xor eax, eax
    call ecx
    EXPECT eax, 1, "when it is the supervisor's it runs"
    ret

# Code that makes its own page the user's runs up to INVLPG.
while_running:
    PTE 6, FRAME_B+(P|W)
    mov esi, offset leaves_itself
    mov edi, FRAME_B+0x200
    mov ecx, offset leaves_itself_end-leaves_itself
    rep movsb
    xor edx, edx
    mov ecx, WINDOW+0x6200
    TRY call ecx
    EXPECT [fault_error], PF_PRESENT|PF_FETCH, "code that gives its page to the user faults"
    EXPECT [fault_eip], WINDOW+0x6200+(behind_invlpg-leaves_itself), "behind INVLPG"
    EXPECT edx, 1, "and not before"
    add esp, 4
    ret
leaves_itself:
    mov dword ptr [TABLE+4*6], FRAME_B+(P|W|U)
    inc edx
    invlpg [WINDOW+0x6000]
behind_invlpg:
    inc edx
    ret
leaves_itself_end:

.bss
.align 4
back_to: .skip 4
