//! Emitted code as text that depends only on what was emitted.

use super::emitted::Emitted;
use super::mode::Guest;
use iced_x86::{Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use tollgate_engine::abi::context_displacements as at;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_engine::abi::link_layout::{
    ENTRY_BYTES, ENTRY_NEGATED_SLIDE, ENTRY_SLIDE, ENTRY_TARGET, FAR_TABLE_OFFSET, LINKS_BIAS,
    SLOT_BYTES, SLOTS_OFFSET, from_links,
};
use tollgate_engine::abi::memos::level_change::{LevelChange, LevelChangeKind};
use tollgate_engine::abi::signal_completion::CompletionKind;
use tollgate_engine::abi::sites::{LinkPlace, Site, SiteKind};
use tollgate_engine::abi::state_map::{Shadow, Source, StateEntry};
use tollgate_engine::abi::strings::{OPERATIONS, ROUTINES, StringRoutine};
use tollgate_engine::policy::instruction_kind::Helper;
use tollgate_tlb::View;
use tollgate_tlb::long_tlb::{
    DIRECT_TABLE_DISPLACEMENT, LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT,
};
use tollgate_tlb::software_tlb::{
    NARROW_DELTA_OFFSET, SUPERVISOR_VIEW_OFFSET, WRITE_TABLE_OFFSET, limit_check_offset,
};
use tollgate_x86::SegmentRegister;

const GUEST_REGISTERS: [&str; 16] = [
    "eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const HOST_REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// The name of the context's field at this displacement from R15.
fn field(displacement: i32) -> String {
    let fields = [
        (at::fast_path_routine(FastPath::Cpuid), "fast_path.cpuid"),
        (
            at::fast_path_routine(FastPath::LoadSegment),
            "fast_path.load_segment",
        ),
        (at::fast_path_routine(FastPath::Return), "fast_path.return"),
        (
            at::fast_path_routine(FastPath::Interrupt),
            "fast_path.interrupt",
        ),
        (
            at::fast_path_routine(FastPath::Refusal),
            "fast_path.refusal",
        ),
        (at::fast_path_routine(FastPath::Far), "fast_path.far"),
        (
            at::fast_path_routine(FastPath::Vectors),
            "fast_path.vectors",
        ),
        (at::fast_path_routine(FastPath::Invlpg), "fast_path.invlpg"),
        (at::fast_path_routine(FastPath::Msr), "fast_path.msr"),
        (
            at::fast_path_routine(FastPath::ControlRegister),
            "fast_path.control_register",
        ),
        (at::fast_path_routine(FastPath::Other), "fast_path.other"),
        (at::fast_path_routine(FastPath::PortIn), "fast_path.port_in"),
        (
            at::fast_path_routine(FastPath::PortOut),
            "fast_path.port_out",
        ),
        (at::EXIT_SITE, "exit_site"),
        (at::TLB, "tlb"),
        (at::EXIT_VALUE, "exit_value"),
        (at::EXIT_ENTRY, "exit_entry"),
        (at::VECTORS_OFF, "vectors_off"),
        (at::DIRECTION, "direction"),
        (at::INTERRUPT_FLAG, "interrupt_flag"),
        (at::INTERRUPT_REQUEST, "interrupt_request"),
        (at::SYSTEM_FLAGS, "system_flags"),
        (at::IDT_BASE, "idt.base"),
        (at::IDT_LIMIT, "idt.limit"),
        (at::WORK[0], "work.0"),
        (at::WORK[1], "work.1"),
        (at::WORK[2], "work.2"),
        (at::CODE_DESCRIPTOR, "cs.descriptor.place"),
        (at::CODE_DESCRIPTOR + 8, "cs.descriptor.mask"),
        (at::CODE_DESCRIPTOR + 16, "cs.descriptor.bits"),
        (at::STACK_DESCRIPTOR, "ss.descriptor.place"),
        (at::STACK_DESCRIPTOR + 8, "ss.descriptor.mask"),
        (at::STACK_DESCRIPTOR + 16, "ss.descriptor.bits"),
        (at::TASK_BASE, "tr.base"),
        (at::TASK_LIMIT, "task_limit"),
        (at::BOUNCE_POINTER, "bounce_pointer"),
        (at::TIME_STAMP_OFFSET, "time_stamp_offset"),
        (at::PROGRESS, "progress"),
        (at::register::TSC_AUX, "tsc_aux"),
        (at::register::FLAGS, "flags"),
        (at::register::CR0, "cr0"),
        (at::register::CR2, "cr2"),
        (at::register::CR3, "cr3"),
        (at::register::CR4, "cr4"),
        (at::register::LSTAR, "lstar"),
        (at::register::SYSENTER_EIP, "sysenter_eip"),
        (at::register::SYSENTER_ESP, "sysenter_esp"),
        (at::register::KERNEL_GS_BASE, "kernel_gs_base"),
        (at::LEVEL_CHANGED, "level_changed"),
        (at::RESUME_FLAG_LOADED, "resume_flag_loaded"),
        (at::RETURNED_RIP, "returned_rip"),
        (at::OUTER_CODE_SELECTOR, "outer.cs"),
        (at::OUTER_STACK_SELECTOR, "outer.ss"),
        (at::OUTER_CODE_DESCRIPTOR, "outer.cs.descriptor.place"),
        (at::OUTER_CODE_DESCRIPTOR + 8, "outer.cs.descriptor.mask"),
        (at::OUTER_CODE_DESCRIPTOR + 16, "outer.cs.descriptor.bits"),
        (at::OUTER_STACK_DESCRIPTOR, "outer.ss.descriptor.place"),
        (at::OUTER_STACK_DESCRIPTOR + 8, "outer.ss.descriptor.mask"),
        (at::OUTER_STACK_DESCRIPTOR + 16, "outer.ss.descriptor.bits"),
        (at::X87_INSTRUCTION, "x87_instruction"),
        (at::X87_OPCODE, "x87_opcode"),
        (at::X87_OPERAND, "x87_operand"),
        (at::X87_SELECTORS, "x87_selectors"),
        (at::X87_SELECTORS + 2, "x87_data_selector"),
        (at::X87_OPERAND_OFFSET, "x87_operand_offset"),
        (at::CODE_SLIDE, "code_slide"),
        (at::CODE_LINES, "code_lines"),
        (at::CODE_BYTES, "code_bytes"),
        (at::STORE_RETURN, "store_return"),
        (at::STORE_DELTA, "store_delta"),
        (at::STORE_PASS, "store_pass"),
    ];
    if let Some((_, name)) = fields.iter().find(|(known, _)| *known == displacement) {
        return (*name).to_owned();
    }
    if let Some(guest) = (0..16u8).find(|guest| at::slot(*guest) == displacement) {
        return format!("slot.{}", GUEST_REGISTERS[usize::from(guest)]);
    }
    if let Some(size) = (1..=64u8).find(|&size| at::code_store(size) == Some(displacement)) {
        return format!("code_store.{size}");
    }
    if let Some(size) = (1..=64u8).find(|&size| at::long_code_store(size) == Some(displacement)) {
        return format!("long_code_store.{size}");
    }
    let routine = (0..ROUTINES).find(|&it| at::string_routine(StringRoutine(it)) == displacement);
    if let Some(routine) = routine {
        let reach = ["flat", "long", "compat", "words"][routine / OPERATIONS];
        let width = ["b", "w", "d", "q"][routine % 4];
        let names = [
            "rep_movs",
            "rep_stos",
            "repe_cmps",
            "repne_cmps",
            "repe_scas",
            "repne_scas",
            "rep_lods",
        ];
        let name = names[routine % OPERATIONS / 4];
        return format!("{reach}.{name}{width}");
    }
    for (register, name) in SegmentRegister::ALL
        .into_iter()
        .zip(["es", "cs", "ss", "ds", "fs", "gs"])
    {
        if at::segment_base(register) == displacement {
            return format!("{name}.base");
        }
        if at::segment_selector(register) == displacement {
            return format!("{name}.selector");
        }
        if at::segment_limit(register) == displacement {
            return format!("{name}.limit");
        }
    }
    for kind in LevelChangeKind::ALL {
        let parts = [
            ("from", offset_of!(LevelChange, from)),
            ("cs", offset_of!(LevelChange, code)),
            ("cs+8", offset_of!(LevelChange, code) + 8),
            ("ss", offset_of!(LevelChange, stack)),
            ("ss+8", offset_of!(LevelChange, stack) + 8),
            ("tlb", offset_of!(LevelChange, tlb)),
            ("table", offset_of!(LevelChange, then.table)),
            ("tag", offset_of!(LevelChange, then.tag)),
        ];
        for (name, offset) in parts {
            if at::level_change(kind) + offset as i32 == displacement {
                return format!("{}.{name}", format!("{kind:?}").to_lowercase());
            }
        }
    }
    panic!("emitted code names a field at {displacement:#x}: give it a name here");
}

/// For a load that checks the limit of a segment of 64 KiB: the distance from the operand's first
/// byte to its last.
fn limit_check(instruction: &Instruction) -> Option<i32> {
    let displacement = instruction.memory_displacement64() as i32;
    let sizes = 0..4096;
    let behind = View::ALL.map(|view| displacement - limit_check_offset(view));
    let is_one = instruction.memory_index_scale() == 1;
    behind.into_iter().find(|it| is_one && sizes.contains(it))
}

/// The text in the brackets of a memory operand, if a name is better than the operand itself.
fn operand(instruction: &Instruction) -> Option<String> {
    let displacement = instruction.memory_displacement64() as i32;
    let index = match instruction.memory_index() {
        Register::None => String::new(),
        register => format!("{register:?}*{}", instruction.memory_index_scale()).to_lowercase(),
    };
    match instruction.memory_base() {
        Register::R15 => Some(field(displacement)),
        Register::R14 if displacement == LONG_ROOT_DISPLACEMENT => {
            Some(format!("tlb.root+{index}"))
        }
        Register::R14 if displacement == DIRECT_TABLE_DISPLACEMENT => {
            Some(format!("windows+{index}"))
        }
        Register::RCX if displacement == LONG_WRITE_DISPLACEMENT => {
            Some(format!("rcx+{index}+writes"))
        }
        Register::R14 if displacement == NARROW_DELTA_OFFSET => Some("window.delta".to_owned()),
        Register::R14 if limit_check(instruction).is_some() => {
            let register = format!("{:?}", instruction.memory_index()).to_lowercase();
            Some(match limit_check(instruction) {
                None | Some(0) => format!("limit+{register}"),
                Some(behind) => format!("limit+{register}+{behind}"),
            })
        }
        Register::R14 => {
            let table = match displacement {
                0 => "tlb.read",
                WRITE_TABLE_OFFSET => "tlb.write",
                SUPERVISOR_VIEW_OFFSET => "tlb.supervisor.read",
                _ => panic!("a table at {displacement:#x}"),
            };
            Some(format!("{table}+{index}"))
        }
        Register::R13 if index.is_empty() => Some(format!(
            "links.slot{}",
            (displacement + LINKS_BIAS - SLOTS_OFFSET) / SLOT_BYTES
        )),
        Register::R13 if displacement == from_links(FAR_TABLE_OFFSET) => {
            Some(format!("links.far_tags+{index}"))
        }
        Register::R13 if displacement == from_links(FAR_TABLE_OFFSET + 8) => {
            Some(format!("links.far_targets+{index}"))
        }
        Register::R13 => {
            let part = match (displacement + LINKS_BIAS) & (ENTRY_BYTES - 1) {
                0 => "tags",
                ENTRY_TARGET => "targets",
                ENTRY_SLIDE => "deltas",
                ENTRY_NEGATED_SLIDE => "negated_slides",
                _ => panic!("a table at {displacement:#x}"),
            };
            let choice = match (displacement + LINKS_BIAS) & ENTRY_BYTES {
                0 => "",
                _ => "second_",
            };
            Some(format!("links.{choice}{part}+{index}"))
        }
        _ => None,
    }
}

/// The offsets that get a label: all targets of jumps.
struct Labels(Vec<u32>);

impl Labels {
    fn of(instructions: &[&Instruction]) -> Self {
        let targets = instructions.iter().filter_map(|it| target(it));
        let sorted: BTreeSet<u32> = targets.collect();
        Self(sorted.into_iter().collect())
    }

    fn name(&self, offset: u32) -> Option<String> {
        let index = self.0.binary_search(&offset).ok()?;
        Some(format!("L{}", index + 1))
    }
}

/// The offset in the block that an instruction names.
fn target(instruction: &Instruction) -> Option<u32> {
    let is_branch =
        (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::NearBranch64);
    if is_branch {
        Some(instruction.near_branch64() as u32)
    } else if instruction.is_ip_rel_memory_operand() {
        Some(instruction.ip_rel_memory_address() as u32)
    } else {
        None
    }
}

/// The text of one host instruction.
fn host_text(instruction: &Instruction, labels: &Labels) -> String {
    let mut formatter = IntelFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(false);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    if let Some(offset) = target(instruction) {
        let label = labels.name(offset).unwrap_or_else(|| "end".into());
        return if instruction.is_ip_rel_memory_operand() {
            let (before, _) = text.split_once('[').expect("a memory operand");
            format!("{before}[{label}]")
        } else {
            let (mnemonic, _) = text.split_once(' ').expect("a target");
            format!("{mnemonic} {label}")
        };
    }
    let has_memory =
        (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    if has_memory
        && instruction.mnemonic() != Mnemonic::Lea
        && let Some(name) = operand(instruction)
        && let (Some(start), Some(end)) = (text.find('['), text.find(']'))
    {
        text.replace_range(start + 1..end, &name);
    }
    text
}

/// The number of the site through which this and the next instruction leave.
fn exit_site(instruction: &Instruction, next: Option<&&Instruction>) -> Option<usize> {
    let is_field = |instruction: &Instruction, displacement: i32| {
        instruction.memory_base() == Register::R15
            && instruction.memory_displacement64() as i32 == displacement
    };
    let next = next?;
    let stores = instruction.mnemonic() == Mnemonic::Mov
        && is_field(instruction, at::EXIT_SITE)
        && instruction.op1_kind() == OpKind::Immediate32;
    // A miss in the software TLB leaves if the TLB cannot be filled without an exit.
    let leaves = next.is_jmp_near_indirect()
        && (is_field(next, at::EXIT_ENTRY) || is_field(next, at::MISS_ENTRY));
    (stores && leaves).then(|| instruction.immediate32() as usize)
}

fn position(guest: &Guest, rip: u64) -> String {
    if rip == guest.end() {
        "end".into()
    } else {
        let distance = rip.wrapping_sub(guest.rip) as i64;
        format!("{distance:+}")
    }
}

fn site_text(guest: &Guest, site: &Site, helpers: &[Helper]) -> String {
    let mut text = match site.kind {
        SiteKind::Link(LinkPlace::Direct { .. }) => "link".to_owned(),
        SiteKind::Link(LinkPlace::Slot { slot, .. }) => format!("link slot{slot}"),
        SiteKind::Indirect => "indirect".into(),
        SiteKind::Far => "far".into(),
        SiteKind::LevelChanged => "level changed".into(),
        SiteKind::Memory { size, write } => {
            format!("memory {} {size}", if write { "write" } else { "read" })
        }
        SiteKind::SystemRead { size, .. } => format!("system read {size}"),
        SiteKind::Slow => "slow".into(),
        SiteKind::Helper(index) => {
            let helper = helpers[usize::from(index)].instruction;
            format!("helper {:?}", helper.mnemonic()).to_lowercase()
        }
        SiteKind::VectorLoad => "vector load".into(),
        SiteKind::Continue => "continue".into(),
        SiteKind::Fault(vector) => format!("fault {vector:?}"),
    };
    write!(text, " at {}", position(guest, site.rip)).unwrap();
    if site.esp != 0 {
        write!(text, ", esp{:+}", site.esp).unwrap();
    }
    text.push_str(shadow_text(site.shadowed));
    if site.after != 0 {
        text.push_str(", comes back");
        if site.after_esp != 0 {
            write!(text, " with esp{:+}", site.after_esp).unwrap();
        }
    }
    text
}

fn shadow_text(shadow: Shadow) -> &'static str {
    match shadow {
        Shadow::None => "",
        Shadow::Interrupts => ", in shadow",
        Shadow::All => ", in shadow of ss",
    }
}

fn state_text(guest: &Guest, entry: &StateEntry) -> String {
    let mut text = match entry.restore.eip() {
        Some(host) => format!("at {}", HOST_REGISTERS[usize::from(host.0 & 15)]),
        None => position(guest, entry.rip),
    };
    if let Some((register, host)) = entry.restore.segment() {
        let host = HOST_REGISTERS[usize::from(host.0 & 15)];
        if register == SegmentRegister::Cs {
            text = format!("at far {host}");
        } else {
            write!(text, ", {register:?} from {host}").unwrap();
        }
    }
    if entry.esp != 0 {
        write!(text, ", esp{:+}", entry.esp).unwrap();
    }
    for (register, source) in entry.restore.moves() {
        let register = GUEST_REGISTERS[usize::from(register & 15)];
        let source = match source {
            Source::Host(host) => HOST_REGISTERS[usize::from(host.0 & 15)],
            Source::Slot => "its slot",
        };
        write!(text, ", {register} from {source}").unwrap();
    }
    text.push_str(shadow_text(entry.shadowed));
    text
}

/// The text of an entry, without its head.
pub fn text(guest: &Guest, emitted: &Emitted) -> String {
    let ending = emitted.ending(guest);
    // The final jump and its stub (two instructions) are left out.
    let is_ending = |instruction: &Instruction| {
        let offset = instruction.ip() as u32;
        ending.is_some_and(|(jump, stub)| {
            let stub_end = emitted
                .instructions
                .iter()
                .filter(|it| it.ip() as u32 >= stub)
                .nth(2);
            let stub_end = stub_end.map_or(u32::MAX, |it| it.ip() as u32);
            offset == jump || (stub..stub_end).contains(&offset)
        })
    };
    let (skipped, shown): (Vec<&Instruction>, Vec<&Instruction>) = emitted
        .instructions
        .iter()
        .partition(|instruction| is_ending(instruction));
    let skipped_bytes: usize = skipped.iter().map(|instruction| instruction.len()).sum();
    let labels = Labels::of(&shown);
    let mut text = format!(
        "   {} bytes, {} instructions\n",
        emitted.bytes - skipped_bytes,
        shown.len()
    );
    let translation = &emitted.translation;
    let mut at = 0;
    while let Some(instruction) = shown.get(at) {
        let offset = instruction.ip() as u32;
        let (line, count) = match exit_site(instruction, shown.get(at + 1)) {
            Some(site) => {
                let site = site_text(
                    guest,
                    &translation.tables.sites[site],
                    &translation.tables.helpers,
                );
                (format!("exit: {site}"), 2)
            }
            None => (host_text(instruction, &labels), 1),
        };
        let label = labels
            .name(offset)
            .map_or(String::new(), |name| format!("{name}:"));
        let line = format!("{label:<5}{line}");
        let bytes: usize = shown[at..at + count].iter().map(|it| it.len()).sum();
        let end = offset + bytes as u32;
        let mut state_map: Vec<_> = translation
            .tables
            .state_map
            .iter()
            .filter(|entry| (offset..end).contains(&entry.host))
            .map(|entry| state_text(guest, entry))
            .collect();
        for completion in &translation.tables.completions {
            if completion.start == offset {
                state_map.push(match completion.kind {
                    CompletionKind::Flags { .. } => "flags from r11".into(),
                    CompletionKind::Frame { .. } => "frame from work".into(),
                });
            } else if completion.end == offset {
                state_map.push("completed".into());
            }
        }
        match state_map.as_slice() {
            [] => writeln!(text, "{line}").unwrap(),
            state_map => writeln!(text, "{line:<44}; {}", state_map.join(" | ")).unwrap(),
        }
        at += count;
    }
    text
}
