//! Bytes that Intel's and AMD's processors decode as different instructions.
//!
//! | bytes | Intel | AMD |
//! |---|---|---|
//! | 66h and a near branch of 64-bit code | 66h is ignored (SDM volume 2, JMP and CALL) | operand and RIP have 16 bits (APM volume 3, JMP near) |
//! | REX.W and LFS, LGS, LSS, far JMP and CALL | a pointer with an offset of 64 bits (SDM volume 2, LDS and JMP) | REX.W is ignored (APM volume 3, LFS and JMP far) |
//! | F3h, REX.B, 90h | PAUSE | XCHG with R8 (APM volume 3, XCHG and PAUSE) |
//! | 0F 0D with a register | a reserved NOP (SDM volume 2, appendix A) | #UD (APM volume 3, PREFETCH) |
//! | VPEXTRD, VPINSRD with VEX.W outside 64-bit code | W is ignored (SDM volume 2, PEXTRD) | #UD |
//! | MOVSXD of 16 bits from memory | reads 16 bits (SDM volume 2, MOVSXD) | reads 32 bits |
//!
//! Where the table names no section of AMD's manual, AMD's processors of family 19h behave in this
//! way (`crates/oracle/tests/together/findings.rs`).

use iced_x86::{Code, CodeSize, Decoder, DecoderOptions, Instruction, OpKind};

/// The maker whose processor the guest's instruction bytes are decoded for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decoding {
    /// Intel's processors, and those of every maker except AMD.
    #[default]
    Intel,
    /// AMD's processors.
    Amd,
}

impl Decoding {
    /// The options for a decoder whose instructions are passed to [`Decoding::refine`].
    pub const fn options(self) -> u32 {
        match self {
            Decoding::Intel => DecoderOptions::NONE,
            Decoding::Amd => DecoderOptions::AMD,
        }
    }

    /// The first instruction of `bytes`, which lie at `ip`, in code of `bits` bits.
    pub fn decode(self, bits: u32, bytes: &[u8], ip: u64) -> Instruction {
        let mut decoded = Decoder::with_ip(bits, bytes, ip, self.options()).decode();
        self.refine(&mut decoded, bytes);
        decoded
    }

    /// Corrects an instruction that was decoded with [`Decoding::options`] from the start of
    /// `bytes`, where makers differ in ways that the decoder's options do not cover.
    ///
    /// The instruction is changed in place, since nearly all instructions need no correction, and a
    /// copy costs as much as the test.
    #[inline]
    pub fn refine(self, decoded: &mut Instruction, bytes: &[u8]) {
        if self == Decoding::Amd && is_read_differently(decoded.code()) {
            *decoded = self.refine_as_amd(*decoded, bytes);
        }
    }

    #[cold]
    fn refine_as_amd(self, decoded: Instruction, bytes: &[u8]) -> Instruction {
        let bytes = bytes.get(..decoded.len()).unwrap_or_default();
        let mut refined = decoded;
        match decoded.code() {
            Code::Pause if decoded.code_size() == CodeSize::Code64 && has_rex_b(bytes) => {
                let options = DecoderOptions::AMD | DecoderOptions::NO_PAUSE;
                return Decoder::with_ip(64, bytes, decoded.ip(), options).decode();
            }
            Code::Reservednop_rm16_r16_0F0D
            | Code::Reservednop_rm32_r32_0F0D
            | Code::Reservednop_rm64_r64_0F0D
                if decoded.op0_kind() == OpKind::Register =>
            {
                refined.set_code(Code::INVALID);
            }
            Code::VEX_Vpextrd_rm32_xmm_imm8 | Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8
                if has_vex_w(bytes) =>
            {
                refined.set_code(Code::INVALID);
            }
            // The decoder takes the instruction for MOV CR8, which AMD's CPUID offers by a separate
            // bit (APM volume 3, MOV CRn; CPUID 8000_0001h, ECX bit 4) that no guest is given.
            Code::Mov_cr_r32 | Code::Mov_cr_r64 | Code::Mov_r32_cr | Code::Mov_r64_cr
                if has_lock(bytes) =>
            {
                refined.set_code(Code::INVALID);
            }
            _ => {}
        }
        refined
    }

    /// The number of bytes that an instruction accesses through its memory operand.
    pub fn operand_bytes(self, instruction: &Instruction) -> u32 {
        match (self, instruction.code()) {
            (Decoding::Amd, Code::Movsxd_r16_rm16) => 4,
            _ => instruction.memory_size().size().max(1) as u32,
        }
    }
}

/// Encodings that [`Decoding::refine`] may change.
fn is_read_differently(code: Code) -> bool {
    matches!(
        code,
        Code::Pause
            | Code::Reservednop_rm16_r16_0F0D
            | Code::Reservednop_rm32_r32_0F0D
            | Code::Reservednop_rm64_r64_0F0D
            | Code::VEX_Vpextrd_rm32_xmm_imm8
            | Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8
            | Code::Mov_cr_r32
            | Code::Mov_cr_r64
            | Code::Mov_r32_cr
            | Code::Mov_r64_cr
    )
}

/// Whether a one-byte opcode follows a REX prefix with B set.
fn has_rex_b(bytes: &[u8]) -> bool {
    matches!(bytes, [.., rex, _] if rex & 0xf1 == 0x41)
}

/// Whether LOCK stands before an opcode of the two-byte map; the decoder does not show that.
fn has_lock(bytes: &[u8]) -> bool {
    let mut prefixes = bytes.iter().take_while(|&&byte| byte != 0x0f);
    prefixes.any(|&byte| byte == 0xf0)
}

/// Whether the VEX prefix has three bytes and W is set.
fn has_vex_w(bytes: &[u8]) -> bool {
    let mut behind = bytes.iter().skip_while(|&&byte| byte != 0xc4).skip(2);
    behind.next().is_some_and(|byte| byte & 0x80 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Mnemonic, Register};

    fn both(bits: u32, bytes: &[u8]) -> [Instruction; 2] {
        let mut padded = bytes.to_vec();
        padded.resize(16, 0xcc);
        [Decoding::Intel, Decoding::Amd].map(|maker| maker.decode(bits, &padded, 0x1234_5678))
    }

    fn codes(bits: u32, bytes: &[u8]) -> [Code; 2] {
        both(bits, bytes).map(|instruction| instruction.code())
    }

    #[test]
    fn near_branches_of_64_bit_code_have_16_bits_behind_66h_with_amd() {
        assert_eq!(
            codes(64, &[0x66, 0xe9, 1, 2]),
            [Code::Jmp_rel32_64, Code::Jmp_rel16]
        );
        assert_eq!(
            codes(64, &[0x66, 0x74, 2]),
            [Code::Je_rel8_64, Code::Je_rel8_16]
        );
        assert_eq!(codes(64, &[0x66, 0xc3]), [Code::Retnq, Code::Retnw]);
        assert_eq!(
            codes(64, &[0x66, 0xff, 0xe0]),
            [Code::Jmp_rm64, Code::Jmp_rm16]
        );
        let [intel, amd] = both(64, &[0x66, 0xeb, 0x7f]);
        assert_eq!(intel.near_branch_target(), 0x1234_56fa);
        assert_eq!(amd.near_branch_target(), 0x56fa);
        for bits in [16, 32] {
            let [intel, amd] = codes(bits, &[0x66, 0xe9, 1, 2]);
            assert_eq!(intel, amd);
        }
    }

    #[test]
    fn amd_has_no_pointers_with_offsets_of_64_bits() {
        assert_eq!(
            codes(64, &[0x48, 0x0f, 0xb4, 0x07]),
            [Code::Lfs_r64_m1664, Code::Lfs_r32_m1632]
        );
        assert_eq!(
            codes(64, &[0x48, 0xff, 0x2f]),
            [Code::Jmp_m1664, Code::Jmp_m1632]
        );
    }

    #[test]
    fn rex_b_makes_an_exchange_of_pause_with_amd() {
        for (bytes, register) in [
            (&[0xf3, 0x45, 0x90], Register::R8D),
            (&[0xf3, 0x49, 0x90], Register::R8),
        ] {
            let [intel, amd] = both(64, bytes);
            assert_eq!(intel.code(), Code::Pause);
            assert_eq!(amd.mnemonic(), Mnemonic::Xchg);
            assert_eq!(amd.op0_register(), register);
            assert_eq!((amd.len(), amd.ip()), (3, 0x1234_5678));
        }
        for bytes in [&[0xf3, 0x44, 0x90][..], &[0x41, 0xf3, 0x90], &[0xf3, 0x90]] {
            assert_eq!(codes(64, bytes), [Code::Pause; 2]);
        }
    }

    #[test]
    fn prefetch_of_a_register_is_undefined_with_amd() {
        for bits in [16, 32, 64] {
            let [intel, amd] = both(bits, &[0x0f, 0x0d, 0xd2]);
            assert_eq!(intel.mnemonic(), Mnemonic::Reservednop);
            assert!(amd.is_invalid());
            let [intel, amd] = codes(bits, &[0x0f, 0x0d, 0x0f]);
            assert_eq!((intel, amd), (Code::Prefetchw_m8, Code::Prefetchw_m8));
        }
    }

    #[test]
    fn vpextrd_and_vpinsrd_with_w_are_undefined_with_amd() {
        let pextrd = [0xc4, 0xe3, 0xf9, 0x16, 0xf9, 0x62];
        let pinsrd = [0x2e, 0xc4, 0xe3, 0xf9, 0x22, 0x6e, 0x2d, 0xc6];
        for bits in [16, 32] {
            for bytes in [&pextrd[..], &pinsrd] {
                let [intel, amd] = both(bits, bytes);
                assert!(!intel.is_invalid() && amd.is_invalid());
            }
        }
        assert_eq!(codes(64, &pextrd), [Code::VEX_Vpextrq_rm64_xmm_imm8; 2]);
        let narrow = [0xc4, 0xe3, 0x79, 0x16, 0xf9, 0x62];
        assert_eq!(codes(32, &narrow), [Code::VEX_Vpextrd_rm32_xmm_imm8; 2]);
    }

    #[test]
    fn movsxd_of_16_bits_reads_four_bytes_with_amd() {
        let load = Decoding::Intel.decode(64, &[0x66, 0x63, 0x07], 0);
        assert_eq!(load.code(), Code::Movsxd_r16_rm16);
        let sizes = [Decoding::Intel, Decoding::Amd].map(|maker| maker.operand_bytes(&load));
        assert_eq!(sizes, [2, 4]);
    }

    #[test]
    fn lock_mov_cr0_is_undefined() {
        for bits in [32, 64] {
            let instructions = both(bits, &[0xf0, 0x0f, 0x20, 0xc0]);
            assert!(instructions.iter().all(Instruction::is_invalid));
        }
    }
}
