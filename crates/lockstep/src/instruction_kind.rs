//! Which instructions need special treatment when processors are compared.

use iced_x86::{Instruction, Mnemonic};

/// Whether the result depends on devices, time or the processor's model, and is taken from QEMU.
pub fn is_input(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        In | Insb | Insw | Insd | Cpuid | Rdtsc | Rdtscp | Rdpmc | Rdmsr | Xgetbv | Rdrand | Rdseed
    )
}

/// Whether the processor's model decides if the instruction is refused.
pub fn may_be_refused(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Rdmsr | Wrmsr | Rdpmc | Xsetbv | Xgetbv
    )
}

/// Whether the instruction stores an image whose content depends on the model.
pub fn stores_image(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Fxsave | Fnsave | Fsave | Fnstenv | Fstenv | Xsave | Xsaveopt | Insb | Insw | Insd
    )
}

/// Whether the instruction may change hidden parts of registers, or system registers, without a
/// change of a selector.
pub fn changes_hidden(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Lgdt | Lidt
            | Lldt
            | Ltr
            | Lds
            | Les
            | Lss
            | Lfs
            | Lgs
            | Iret
            | Iretd
            | Iretq
            | Retf
            | Sysenter
            | Sysexit
            | Sysexitq
            | Syscall
            | Sysret
            | Sysretq
            | Swapgs
            | Wrmsr
            | Wrfsbase
            | Wrgsbase
            | Int
            | Int3
            | Into
    ) || instruction.is_jmp_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far()
        || instruction.is_call_far_indirect()
        || (instruction.op_count() > 0 && instruction.op0_register().is_segment_register())
}

/// Whether this is a string instruction with a repeat prefix.
pub fn repeats(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn decode(bytes: &[u8]) -> Instruction {
        Decoder::new(32, bytes, DecoderOptions::NONE).decode()
    }

    #[test]
    fn port_reads_and_time_are_inputs() {
        assert!(is_input(&decode(&[0xec])));
        assert!(is_input(&decode(&[0x0f, 0x31])));
        assert!(!is_input(&decode(&[0xee])));
    }

    #[test]
    fn only_string_instructions_repeat() {
        assert!(repeats(&decode(&[0xf3, 0xab])));
        assert!(!repeats(&decode(&[0xab])));
        assert!(!repeats(&decode(&[0xf3, 0x90])));
    }

    #[test]
    fn loading_a_segment_register_changes_what_is_hidden() {
        assert!(changes_hidden(&decode(&[0x8e, 0xd8])));
        assert!(changes_hidden(&decode(&[0x1f])));
        assert!(!changes_hidden(&decode(&[0x8c, 0xd8])));
    }
}
