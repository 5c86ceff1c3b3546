# tasks - hardware task switches by far JMP, far CALL and IRET
.include "guest.inc"
.include "tasks.inc"

main:
    call make_tasks
    DESCRIPTOR LDT, ldt, 15, SEG_LDT
    TASK_GATE GATE_OPEN, VISITOR, 0xE5
    TASK_GATE GATE_CLOSED, VISITOR
    call nesting
    call jumping
    call gates
    call small
    call refused
    call paging
    ret

# A far CALL and the IRET that returns.
nesting:
    mov word ptr [visitor_tss+TASK_LDT], LDT
    mov dword ptr [visitor_tss+TASK_EAX], 0x12345678
    clts
    mov ebx, 0x0B0B0B0B
    mov ebp, esp
    stc
    call VISITOR:0xFFFFFFFF
after_call:
    setc cl
    mov [returned_esp], esp
    mov esp, ebp
    movzx ecx, cl
    EXPECT ecx, 1, "a task that was called returns behind the call, the flags as they were"
    EXPECT ebx, 0x0B0B0B0B, "and the registers"
    EXPECT [returned_esp], ebp, "and the stack"
    EXPECT [seen_eax], 0x12345678, "the called task has the registers of its TSS"
    mov eax, offset visitor_top
    EXPECT [seen_esp], eax, "its stack"
    EXPECT [seen_ldt], LDT, "its LDT"
    EXPECT [seen_tr], VISITOR, "TR names it"
    mov eax, [seen_flags]
    and eax, FLAG_NT|FLAG_C|FLAG_I
    EXPECT eax, FLAG_NT, "NT says that it is nested, the other flags are its TSS's"
    movzx eax, word ptr [visitor_tss+TASK_LINK]
    EXPECT eax, TSS, "its link names the caller"
    EXPECT [seen_main], SEG_TSS|2, "the caller stays busy meanwhile"
    EXPECT [seen_own], SEG_TSS|2, "like itself"
    mov eax, [seen_cr0]
    and eax, CR0_TS
    EXPECT eax, CR0_TS, "the switch sets CR0.TS"
    mov eax, cr0
    and eax, CR0_TS
    EXPECT eax, CR0_TS, "and the one back"
    ACCESS VISITOR
    EXPECT eax, SEG_TSS, "a task that has returned is available"
    ACCESS TSS
    EXPECT eax, SEG_TSS|2, "and the caller busy"
    mov eax, [tss+TASK_EIP]
    sub eax, offset after_call
    EXPECT eax, 0, "the caller's TSS holds eip"
    EXPECT [tss+TASK_EBX], 0x0B0B0B0B, "registers"
    movzx eax, word ptr [tss+TASK_CS]
    EXPECT eax, CODE, "and segments"
    EXPECT [visitor_tss+TASK_EBX], 0xBBBBBBBB, "that of the task what it returned with"
    mov eax, [visitor_tss+TASK_EFLAGS]
    and eax, FLAG_NT
    EXPECT eax, 0, "without NT"
    mov eax, [visitor_tss+TASK_EIP]
    sub eax, offset after_iret
    EXPECT eax, 0, "and behind its iret"
    pushfd
    pop eax
    and eax, FLAG_NT
    EXPECT eax, 0, "the caller is not nested"
    call VISITOR:0
    EXPECT [seen_eax], 0xAAAAAAAA, "called again it goes on where it was"
    str eax
    EXPECT eax, TSS, "and TR is the caller's again"
    ret
# A far JMP, and one back.
jumping:
    mov word ptr [other_tss+TASK_LINK], 0x5555
    jmp OTHER:0
    EXPECT [seen_tr], OTHER, "a jump leads to a task"
    mov eax, [seen_flags]
    and eax, FLAG_NT
    EXPECT eax, 0, "which is not nested"
    EXPECT [seen_main], SEG_TSS, "the task that jumped is available"
    EXPECT [seen_own], SEG_TSS|2, "the other busy"
    movzx eax, word ptr [other_tss+TASK_LINK]
    EXPECT eax, 0x5555, "with the link as it was"
    ACCESS OTHER
    EXPECT eax, SEG_TSS, "the jump back reverses that"
    ACCESS TSS
    EXPECT eax, SEG_TSS|2, "on both sides"
    ret
gates:
    mov dword ptr [seen_tr], 0
    call GATE_CLOSED:0
    EXPECT [seen_tr], VISITOR, "a call through a task gate"
    mov dword ptr [seen_tr], 0
    USER_TRY call GATE_OPEN3:0
    EXPECT_NO_FAULT "a task gate of ring 3"
    EXPECT [seen_tr], VISITOR, "leads ring 3 to a task of ring 0"
    USER_TRY call GATE_CLOSED3:0
    EXPECT_FAULT EXC_GP, GATE_CLOSED, "one of ring 0 does not"
    USER_TRY jmp VISITOR3:0
    EXPECT_FAULT EXC_GP, VISITOR, "nor the TSS itself"
    TRY call GATE_OPEN3:0
    EXPECT_NO_FAULT "the RPL counts against the gate's DPL"
    TRY call GATE_CLOSED3:0
    EXPECT_FAULT EXC_GP, GATE_CLOSED, "in ring 0 too"
    ret

# The 16-bit TSS.
small:
    DESCRIPTOR SMALL, small_tss, 43, 0x81
    DESCRIPTOR CODE_SMALL, small_code, 0xFFFF, SEG_CODE|SEG_BIG
    DESCRIPTOR DATA_SMALL, small_stack, 0xFFFF, SEG_DATA
    mov word ptr [small_tss+14], 0               # ip
    mov word ptr [small_tss+16], 2|FLAG_C
    mov word ptr [small_tss+18], 0x1616          # ax
    mov word ptr [small_tss+26], 256             # sp
    mov word ptr [small_tss+34], DATA
    mov word ptr [small_tss+36], CODE_SMALL
    mov word ptr [small_tss+38], DATA_SMALL
    mov word ptr [small_tss+40], DATA
    mov word ptr [small_tss+42], LDT
    call SMALL:0
    movzx eax, word ptr [seen_eax]
    EXPECT eax, 0x1616, "a 16-bit TSS gives ax"
    EXPECT [seen_tr], SMALL, "TR names it"
    EXPECT [seen_ldt], LDT, "it has an LDT"
    EXPECT [seen_fs], 0, "but neither fs nor gs, which are null"
    mov eax, [seen_flags]
    and eax, FLAG_NT|FLAG_C
    EXPECT eax, FLAG_NT|FLAG_C, "nested it is all the same"
    movzx eax, word ptr [small_tss]
    EXPECT eax, TSS, "with a link"
    movzx eax, word ptr [small_tss+18]
    EXPECT eax, 0x5AA5, "and saves words"
    movzx eax, word ptr [small_tss+14]
    EXPECT eax, small_end-small_code, "ip among them"
    ACCESS SMALL
    EXPECT eax, 0x81, "it is available again"
    ret
small_code:
    mov [seen_eax], eax
    pushfd
    pop [seen_flags]
    str eax
    mov [seen_tr], eax
    sldt eax
    mov [seen_ldt], eax
    mov eax, fs
    mov [seen_fs], eax
    mov eax, gs
    or [seen_fs], eax
    mov eax, 0xFFFF5AA5
    iretd
small_end:

# What is refused in the old task, with nothing changed.
refused:
    TRY jmp TSS:0
    EXPECT_FAULT EXC_GP, TSS, "a jump to the running task, which is busy"
    TRY call TSS:0
    EXPECT_FAULT EXC_GP, TSS, "a call to it"
    or byte ptr [gdt+OTHER+5], 2
    TRY call OTHER:0
    EXPECT_FAULT EXC_GP, OTHER, "and to any that is busy"
    DESCRIPTOR OTHER, other_tss, TSS_SIZE-1, 0x09
    TRY jmp OTHER:0
    EXPECT_FAULT EXC_NP, OTHER, "a TSS that is not present"
    DESCRIPTOR OTHER, other_tss, TSS_SIZE-2, SEG_TSS
    TRY jmp OTHER:0
    EXPECT_FAULT EXC_TS, OTHER, "a TSS that is too short"
    DESCRIPTOR OTHER, other_tss, TSS_SIZE-1, SEG_TSS
    DESCRIPTOR SMALL, small_tss, 42, 0x81
    TRY jmp SMALL:0
    EXPECT_FAULT EXC_TS, SMALL, "a 16-bit one"
    TASK_GATE GATE_BAD, DATA
    TRY jmp GATE_BAD:0
    EXPECT_FAULT EXC_GP, DATA, "a task gate that names no TSS"
    TASK_GATE GATE_BAD, TSS
    TRY jmp GATE_BAD:0
    EXPECT_FAULT EXC_GP, TSS, "or a busy one"
.ifndef QEMU                     # where this is #TS
    TASK_GATE GATE_BAD, 4
    TRY jmp GATE_BAD:0
    EXPECT_FAULT EXC_GP, 4, "or one of the LDT"
.endif
    TASK_GATE GATE_BAD, VISITOR, 0x05
    TRY jmp GATE_BAD:0
    EXPECT_FAULT EXC_NP, GATE_BAD, "a task gate that is not present"
    ACCESS TSS
    EXPECT eax, SEG_TSS|2, "the running task stays busy"
    .irp link, 0, DATA, OTHER, TSS+4
    mov word ptr [tss+TASK_LINK], \link
    TRY call nested_return
    EXPECT [fault_vector], EXC_TS, "iret with NT and the link \link"
    EXPECT [fault_error], \link, "names it"
    .endr
    ret
nested_return:                   # the fault resumes behind the call: the rest is dropped
    mov [returned_esp], esp
    pushfd
    or dword ptr [esp], FLAG_NT
    popfd
    mov dword ptr [resume_at], offset 1f
    iretd
1:  pushfd
    and dword ptr [esp], ~FLAG_NT
    popfd
    mov esp, [returned_esp]
    ret

# Each task has page tables of its own.
.set WINDOW, 0x400000            # a page of 4 MiB: in its place, or at 800000h
.set PAGE_4M, 0x83
paging:
    mov dword ptr [WINDOW], 0x0A0A0A0A
    mov dword ptr [0x800000], 0x0B0B0B0B
    mov eax, offset directory_a
    mov dword ptr [eax], PAGE_4M
    mov dword ptr [eax+4], WINDOW|PAGE_4M
    mov edx, offset directory_b
    mov dword ptr [edx], PAGE_4M
    mov dword ptr [edx+4], 0x800000|PAGE_4M
    mov ecx, cr4
    or ecx, CR4_PSE
    mov cr4, ecx
    mov cr3, eax
    mov [tss+TASK_CR3], eax
    mov ecx, cr0
    or ecx, CR0_PG
    mov cr0, ecx
    MAKE_TASK other_tss, mapped, other_top
    mov [other_tss+TASK_CR3], edx
    mov eax, [WINDOW]
    call OTHER:0
    EXPECT [seen_eax], 0x0B0B0B0B, "a task sees memory by the page tables of its TSS"
    mov eax, offset directory_b
    EXPECT [seen_flags], eax, "which CR3 names"
    mov eax, [WINDOW]
    EXPECT eax, 0x0A0A0A0A, "the caller by its own again"
    mov eax, cr3
    mov ecx, offset directory_a
    EXPECT eax, ecx, "when it has come back"
    DESCRIPTOR OTHER, 0xC00000, TSS_SIZE-1, SEG_TSS
    TRY call OTHER:0
    EXPECT [fault_vector], EXC_PF, "a TSS in a page that is not present is a page fault"
    mov eax, [fault_cr2]
    and eax, 0xFFC00000
    EXPECT eax, 0xC00000, "of that page"
    str eax
    EXPECT eax, TSS, "in the old task"
    ACCESS OTHER
    EXPECT eax, SEG_TSS, "with the new one available"
    mov eax, cr0
    and eax, ~CR0_PG
    mov cr0, eax
    ret
mapped:
    mov eax, [WINDOW]
    mov [seen_eax], eax
    mov eax, cr3
    mov [seen_flags], eax
    iretd

.data
.align 8
ldt:
    .quad 0, 0

.bss
.align 4096
directory_a:   .skip 4096
directory_b:   .skip 4096
small_stack:   .skip 256
small_tss:     .skip TSS_SIZE
returned_esp:  .skip 4
