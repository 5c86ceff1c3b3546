//! Selects the function that executes an instruction about system registers, ports, strings or
//! vector images: the second half of `dispatch`.

use crate::cpuid::{Vendor, policy};
use crate::operand::require_cpl0;
use crate::vector_image::Imaging;
use crate::{
    Outcome, base_registers, bits, control, cpuid, decimal, gather, invlpg, invpcid, io, msr,
    page_access, performance_counters, scatter, stack, string, tsc_offset, vector_image,
    vector_state, x87_environment,
};
use iced_x86::{Code, CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception};

/// Executes an instruction that is implemented in the files imported above.
///
/// # Errors
///
/// The exception of the instruction; #UD for any other instruction, including those that CPUID does
/// not offer: MONITOR, MWAIT, RSM and similar ones.
pub(crate) fn dispatch(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match instruction.code() {
        Code::Mov_r32_cr | Code::Mov_r64_cr => {
            return control::read_control(state, environment, instruction);
        }
        Code::Mov_cr_r32 | Code::Mov_cr_r64 => {
            return control::write_control(state, environment, instruction);
        }
        Code::Mov_r32_dr | Code::Mov_r64_dr => return control::read_debug(state, instruction),
        Code::Mov_dr_r32 | Code::Mov_dr_r64 => return control::write_debug(state, instruction),
        _ => {}
    }
    match instruction.mnemonic() {
        Mnemonic::Clts => control::clear_task_switched(state),
        Mnemonic::Invlpg => invlpg::invalidate_page(state, environment, instruction),
        Mnemonic::Invpcid if policy(state).offers(CpuidFeature::INVPCID) => {
            invpcid::invalidate_identifier(state, environment, instruction)
        }
        Mnemonic::Invd | Mnemonic::Wbinvd | Mnemonic::Wbnoinvd => control::invalidate_caches(state),
        Mnemonic::Hlt => control::halt(state),
        Mnemonic::Rdmsr => msr::read_instruction(state, environment),
        Mnemonic::Wrmsr => msr::write_instruction(state, environment),
        Mnemonic::Rdtsc => tsc_offset::read_time_stamp(state, environment),
        Mnemonic::Rdtscp => tsc_offset::read_time_stamp_and_processor(state, environment),
        Mnemonic::Swapgs => base_registers::swap_gs(state),
        Mnemonic::Rdfsbase | Mnemonic::Rdgsbase | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            base_registers::access_base(state, instruction)
        }
        Mnemonic::Clac => page_access::change_access(state, false),
        Mnemonic::Stac => page_access::change_access(state, true),
        Mnemonic::Rdpkru => page_access::read_key_rights(state),
        Mnemonic::Wrpkru => page_access::write_key_rights(state, environment),
        Mnemonic::Rdpmc => performance_counters::read_instruction(state),
        Mnemonic::Cpuid => cpuid::execute(state, environment),
        Mnemonic::Vmrun
        | Mnemonic::Vmload
        | Mnemonic::Vmsave
        | Mnemonic::Stgi
        | Mnemonic::Clgi
        | Mnemonic::Skinit
        | Mnemonic::Invlpga => privileged_svm(state),
        Mnemonic::In => io::input(state, environment, instruction),
        Mnemonic::Out => io::output(state, environment, instruction),
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => {
            io::input_string(state, environment, instruction)
        }
        Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => {
            io::output_string(state, environment, instruction)
        }
        Mnemonic::Daa => Ok(decimal::decimal_adjust_after_addition(state)),
        Mnemonic::Das => Ok(decimal::decimal_adjust_after_subtraction(state)),
        Mnemonic::Aaa => Ok(decimal::ascii_adjust_after_addition(state)),
        Mnemonic::Aas => Ok(decimal::ascii_adjust_after_subtraction(state)),
        Mnemonic::Aam => decimal::ascii_adjust_after_multiplication(state, instruction),
        Mnemonic::Aad => Ok(decimal::ascii_adjust_before_division(state, instruction)),
        Mnemonic::Pusha | Mnemonic::Pushad => stack::push_all(state, environment, instruction),
        Mnemonic::Popa | Mnemonic::Popad => stack::pop_all(state, environment, instruction),
        Mnemonic::Enter => stack::enter(state, environment, instruction),
        Mnemonic::Bound => stack::check_bounds(state, environment, instruction),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => {
            bits::test_bit(state, environment, instruction)
        }
        // Processors without the feature execute these encodings as no-operations.
        Mnemonic::Endbr32
        | Mnemonic::Endbr64
        | Mnemonic::Rdsspd
        | Mnemonic::Rdsspq
        | Mnemonic::Cldemote
        | Mnemonic::Prefetch
        | Mnemonic::Prefetchw
        | Mnemonic::Prefetchwt1 => Ok(Outcome::Next),
        _ if instruction.is_string_instruction() => {
            dispatch_string(state, environment, instruction)
        }
        _ => dispatch_vector(state, environment, instruction),
    }
}

/// An instruction of AMD's virtualization, which no guest is offered: #UD. Under a hypervisor,
/// which has set EFER.SVME, AMD's processors check the privilege level before that (APM volume 3,
/// VMRUN): programs in protected mode get #GP(0).
///
/// # Errors
///
/// Always one of these two.
fn privileged_svm(state: &CpuState) -> Result<Outcome, Exception> {
    if policy(state).vendor() == Vendor::Amd && !state.has_real_mode_segments() {
        require_cpl0(state)?;
    }
    Err(Exception::invalid_opcode())
}

/// MOVS, STOS, LODS, CMPS and SCAS. SSE2 has other instructions named MOVSD and CMPSD, so the code
/// decides, not the mnemonic.
fn dispatch_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match instruction.code() {
        Code::Movsb_m8_m8 | Code::Movsw_m16_m16 | Code::Movsd_m32_m32 | Code::Movsq_m64_m64 => {
            string::move_string(state, environment, instruction)
        }
        Code::Stosb_m8_AL | Code::Stosw_m16_AX | Code::Stosd_m32_EAX | Code::Stosq_m64_RAX => {
            string::store_string(state, environment, instruction)
        }
        Code::Lodsb_AL_m8 | Code::Lodsw_AX_m16 | Code::Lodsd_EAX_m32 | Code::Lodsq_RAX_m64 => {
            string::load_string(state, environment, instruction)
        }
        Code::Cmpsb_m8_m8 | Code::Cmpsw_m16_m16 | Code::Cmpsd_m32_m32 | Code::Cmpsq_m64_m64 => {
            string::compare_string(state, environment, instruction)
        }
        Code::Scasb_AL_m8 | Code::Scasw_AX_m16 | Code::Scasd_EAX_m32 | Code::Scasq_RAX_m64 => {
            string::scan_string(state, environment, instruction)
        }
        _ => Err(Exception::invalid_opcode()),
    }
}

/// Vector state images and element-wise vector accesses.
fn dispatch_vector(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    match instruction.mnemonic() {
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => {
            vector_image::fxsave(state, environment, instruction)
        }
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => {
            vector_image::fxrstor(state, environment, instruction)
        }
        Mnemonic::Xsave | Mnemonic::Xsave64 => {
            vector_image::xsave(state, environment, instruction, Imaging::Plain)
        }
        Mnemonic::Xsaveopt | Mnemonic::Xsaveopt64 => {
            vector_image::xsave(state, environment, instruction, Imaging::Optimized)
        }
        Mnemonic::Xsavec | Mnemonic::Xsavec64 => {
            vector_image::xsave(state, environment, instruction, Imaging::Compacted)
        }
        Mnemonic::Xsaves | Mnemonic::Xsaves64 => {
            vector_image::xsave(state, environment, instruction, Imaging::Supervisor)
        }
        Mnemonic::Xrstor | Mnemonic::Xrstor64 => {
            vector_image::xrstor(state, environment, instruction, Imaging::Plain)
        }
        Mnemonic::Xrstors | Mnemonic::Xrstors64 => {
            vector_image::xrstor(state, environment, instruction, Imaging::Supervisor)
        }
        Mnemonic::Xgetbv => vector_state::get_extended_control(state, environment),
        Mnemonic::Xsetbv => vector_state::set_extended_control(state),
        Mnemonic::Ldmxcsr => vector_state::load_mxcsr(state, environment, instruction, false),
        Mnemonic::Stmxcsr => vector_state::store_mxcsr(state, environment, instruction, false),
        Mnemonic::Vldmxcsr => vector_state::load_mxcsr(state, environment, instruction, true),
        Mnemonic::Vstmxcsr => vector_state::store_mxcsr(state, environment, instruction, true),
        Mnemonic::Fnstenv => x87_environment::store_environment(state, environment, instruction),
        Mnemonic::Fldenv => x87_environment::load_environment(state, environment, instruction),
        Mnemonic::Fnsave => x87_environment::save(state, environment, instruction),
        Mnemonic::Frstor => x87_environment::restore(state, environment, instruction),
        _ if instruction.is_vsib() && instruction.encoding() == EncodingKind::EVEX => {
            match instruction.op0_kind() {
                OpKind::Register => scatter::gather(state, environment, instruction),
                _ => scatter::scatter(state, environment, instruction),
            }
        }
        Mnemonic::Vpgatherdd
        | Mnemonic::Vpgatherdq
        | Mnemonic::Vpgatherqd
        | Mnemonic::Vpgatherqq
        | Mnemonic::Vgatherdps
        | Mnemonic::Vgatherdpd
        | Mnemonic::Vgatherqps
        | Mnemonic::Vgatherqpd => gather::gather(state, environment, instruction),
        Mnemonic::Vmaskmovps
        | Mnemonic::Vmaskmovpd
        | Mnemonic::Vpmaskmovd
        | Mnemonic::Vpmaskmovq => gather::masked_move(state, environment, instruction),
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
            gather::masked_bytes(state, environment, instruction)
        }
        _ => Err(Exception::invalid_opcode()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{long_mode, protected_mode, real_mode, run};
    use tollgate_x86::CpuModel;

    #[test]
    fn instructions_of_svm_are_protection_faults_for_programs_on_amds_processors() {
        // VMRUN, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, INVLPGA.
        for last in [0xd8, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf] {
            let of = |(mut state, mut environment): (CpuState, _)| {
                state.model = CpuModel::Qemu64;
                run(&mut state, &mut environment, &[0x0f, 1, last])
            };
            let undefined = Err(Exception::invalid_opcode());
            let refused = Err(Exception::general_protection(0));
            assert_eq!(of(protected_mode(3)), refused, "{last:x}");
            assert_eq!(of(long_mode(3)), refused, "{last:x}");
            assert_eq!(of(protected_mode(0)), undefined, "{last:x}");
            assert_eq!(of(real_mode()), undefined, "{last:x}");
        }
    }
}
