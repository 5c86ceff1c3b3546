//! Tests that a request to leave guest code changes nothing, at whichever host instruction it
//! arrives: the monitor sees the guest between two of its instructions, and the guest has the same
//! result. The test covers every shape of emitted code and each host instruction that the code
//! executes.
//!
//! By default most host instructions are left out, different ones for each guest.
//! `TOLLGATE_EVERY_INSTRUCTION=1` leaves out none (half an hour), `TOLLGATE_EVERY_INSTRUCTION=13`
//! stops at every 13th of each guest; `TOLLGATE_ONLY` runs only the guests whose names contain its
//! value.

use crate::every_shape::machine::{Machine, vcpu};
use crate::every_shape::{EXIT, Guest, MEMORY, Scene, guests, put};
use crate::tracer::{COUNT, Orders, trace};
use iced_x86::Mnemonic;
use std::fmt::Write;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_test_support::{Computer, visible_vectors};
use tollgate_x86::state::VectorState;
use tollgate_x86::{CpuState, Flags, Gpr, PhysicalAddress};

/// The most guest instructions of a run. Guests that need more are left out.
const LONGEST: usize = 60;
/// The opcode of STI.
const STI: u8 = 0xfb;
/// The most failures that are reported.
const FAILURES: usize = 12;

/// The state of the guest between two instructions.
#[derive(Clone, PartialEq)]
struct Moment {
    cpu: CpuState,
    vectors: Vec<u8>,
    memory: Vec<u8>,
}

impl Moment {
    fn of(vcpu: &mut Computer<Machine>) -> Self {
        let mut memory = vec![0; MEMORY];
        assert!(vcpu.memory_mut().read(PhysicalAddress(0), &mut memory));
        let vectors = visible_vectors(&vcpu.state().vector);
        let mut cpu = vcpu.state().clone();
        cpu.vector = VectorState::initial();
        if cpu.shadow_rip != cpu.rip {
            // A note of an interrupt shadow that is over has no effect.
            cpu.end_shadow();
        }
        Self {
            cpu,
            vectors,
            memory,
        }
    }

    /// Whether this is the same moment as `other`, which follows an STI: STI may have cast a shadow
    /// although interrupts were already let in.
    fn is_shadowed(&self, other: &Moment) -> bool {
        let mut shadowed = other.clone();
        shadowed.cpu.begin_interrupt_shadow(other.cpu.rip);
        *self == shadowed
    }

    /// Describes how this moment differs from another.
    fn difference(&self, other: &Moment) -> String {
        let mut text = String::new();
        let words = |moment: &Moment| {
            let text = format!("{:x?}", moment.cpu);
            text.split(", ").map(str::to_owned).collect::<Vec<_>>()
        };
        for (index, (mine, theirs)) in words(self).iter().zip(words(other)).enumerate() {
            if *mine != theirs {
                let _ = write!(text, " [word {index}: {mine}, expected {theirs}]");
            }
        }
        let mut bytes = |name: &str, mine: &[u8], theirs: &[u8]| {
            let pairs = mine.iter().zip(theirs).enumerate();
            for (at, (mine, theirs)) in pairs.filter(|(_, (mine, theirs))| mine != theirs).take(4) {
                let _ = write!(text, " [{name} {at:#x}: {mine:#x}, expected {theirs:#x}]");
            }
        };
        bytes("vectors", &self.vectors, &other.vectors);
        bytes("memory", &self.memory, &other.memory);
        text
    }
}

/// Runs the guest alone, one instruction after the other. Returns all its moments, the last of
/// which is the end, and the machine with its accesses to devices.
fn moments(guest: &Guest) -> Option<(Vec<Moment>, Machine)> {
    let mut vcpu = vcpu(guest);
    let mut moments = vec![Moment::of(&mut vcpu)];
    while moments.len() < LONGEST {
        let stop = vcpu.step_one();
        moments.push(Moment::of(&mut vcpu));
        if stop.is_err() {
            return vcpu.platform().ended.then(|| {
                let machine = std::mem::take(vcpu.platform_mut());
                (moments, machine)
            });
        }
    }
    None
}

/// One guest with all facts about it that the test needs.
struct Subject<'a> {
    guest: &'a Guest,
    /// Whether the guest reads the time: then EAX and EDX differ from run to run after its first
    /// instruction.
    is_timed: bool,
    moments: Vec<Moment>,
    machine: Machine,
    way: Way,
}

/// The way in which a guest is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Cold,
    /// The code was run before, so everything that it needs is translated and filled.
    Warm,
    /// The code was run before, and most registers live in slots of the context.
    Spilled,
    /// The code was run before at another address: it is relocatable.
    Moved,
}

impl Subject<'_> {
    fn prepared(&self) -> Computer<Machine> {
        let mut vcpu = vcpu(self.guest);
        if self.way == Way::Spilled {
            vcpu.set_register_map(&RegisterMap::SPILLED);
        }
        if self.way != Way::Cold {
            if self.way == Way::Moved {
                let elsewhere = self.guest.elsewhere();
                vcpu.change_state(|cpu| cpu.rip = elsewhere.unwrap_or(cpu.rip));
            }
            vcpu.platform_mut().begin();
            vcpu.run();
            let state = self.guest.state.clone();
            if self.way == Way::Moved {
                // A load of CR3 makes the monitor forget what it knows about the address space.
                vcpu.change_state(|cpu| cpu.cr3 ^= 8);
            }
            vcpu.change_state(|cpu| *cpu = state);
            self.guest.fill(vcpu.memory_mut());
            *vcpu.platform_mut() = Machine::default();
        }
        vcpu
    }

    /// Runs the guest with the signal before one host instruction. Returns what is wrong, and what
    /// [`Orders::run`] returns.
    fn run(&self, orders: &Orders, target: u64) -> (Option<String>, u64) {
        let mut vcpu = self.prepared();
        let code = vcpu.code_range();
        let (wrong, answer) = orders.run(target, code.clone(), || self.follow(&mut vcpu));
        (
            wrong,
            answer.wrapping_sub(if target == COUNT { 0 } else { code.start }),
        )
    }

    /// A moment without the registers that differ from run to run.
    fn repeatable(&self, moment: &Moment) -> Moment {
        let mut moment = moment.clone();
        if self.is_timed && moment.cpu.rip != self.guest.state.rip {
            moment.cpu.gpr[Gpr::Rax as usize] = 0;
            moment.cpu.gpr[Gpr::Rdx as usize] = 0;
        }
        moment
    }

    /// Whether devices saw the same accesses, apart from those that read the time.
    fn has_same_accesses(&self, machine: &Machine) -> bool {
        let places = |machine: &Machine| machine.accesses.iter().map(|it| it.0).collect::<Vec<_>>();
        match self.is_timed {
            true => places(machine) == places(&self.machine),
            false => machine.accesses == self.machine.accesses,
        }
    }

    fn follow(&self, vcpu: &mut Computer<Machine>) -> Option<String> {
        for _ in 0..4 {
            vcpu.platform_mut().begin();
            let stop = vcpu.run();
            let now = self.repeatable(&Moment::of(vcpu));
            if vcpu.platform().ended {
                let end = self.repeatable(self.moments.last()?);
                if now != end {
                    return Some(format!("ends in another state:{}", now.difference(&end)));
                }
                return (!self.has_same_accesses(vcpu.platform())).then(|| {
                    let (found, expected) = (&vcpu.platform().accesses, &self.machine.accesses);
                    format!("reaches devices {found:x?}, expected {expected:x?}")
                });
            }
            if !vcpu.platform().interrupted {
                return Some(format!("stops: {stop:?}"));
            }
            let behind_sti = |moment: &Moment| {
                let eip = moment.cpu.rip.wrapping_sub(1);
                let code = eip.wrapping_sub(self.guest.eip.into()) as usize;
                self.guest.code.get(code) == Some(&STI)
            };
            let is_seen = |moment: &Moment| {
                now == self.repeatable(moment) || behind_sti(moment) && now.is_shadowed(moment)
            };
            if !self.moments.iter().any(is_seen) {
                let same = |moment: &&Moment| moment.cpu.rip == now.cpu.rip;
                let near = self.moments.iter().find(same);
                let how = near.map_or_else(
                    || format!(" no instruction begins at {:#x}", now.cpu.rip),
                    |near| now.difference(near),
                );
                return Some(format!("is seen between instructions:{how}"));
            }
        }
        Some("does not end".into())
    }
}

/// Whether the guest reads the time, and does nothing else that differs from run to run.
fn is_timed(guest: &Guest) -> bool {
    let mut instructions = guest.instructions().into_iter();
    let first = instructions.next().map(|it| it.mnemonic());
    matches!(first, Some(Mnemonic::Rdtsc | Mnemonic::Rdtscp))
        && instructions.next().is_none()
        && guest.scene == Scene::Data
}

fn child(orders: &Orders) -> String {
    let every = std::env::var("TOLLGATE_EVERY_INSTRUCTION").ok();
    let (part, stride) = match every.and_then(|number| number.parse().ok()) {
        Some(stride) => (1, stride),
        None => (11, 13),
    };
    let only = std::env::var("TOLLGATE_ONLY").unwrap_or_default();
    let (mut failures, mut looked_at, mut ran, mut runs) = (Vec::new(), 0_u64, 0_u64, 0_u64);
    let mut timed = 0_u64;
    let guests = guests();
    let chosen =
        |guest: &&Guest| (guest.is_repeatable || is_timed(guest)) && guest.name.contains(&only);
    for guest in guests.iter().filter(chosen) {
        let Some((moments, machine)) = moments(guest) else {
            continue;
        };
        let is_timed = is_timed(guest);
        // There are few guests that read the time, so none of their instructions is left out.
        let (part, stride) = if is_timed { (1, 1) } else { (part, stride) };
        timed += u64::from(is_timed);
        let mut subject = Subject {
            guest,
            is_timed,
            moments,
            machine,
            way: Way::Cold,
        };
        for way in [Way::Cold, Way::Warm, Way::Spilled, Way::Moved] {
            if way == Way::Moved && guest.elsewhere().is_none() {
                continue;
            }
            subject.way = way;
            looked_at += 1;
            if !looked_at.is_multiple_of(part) {
                continue;
            }
            let (wrong, instructions) = subject.run(orders, COUNT);
            let mut report = |wrong: Option<String>, target: u64, place: u64| {
                if let Some(wrong) = wrong {
                    let name = &guest.name;
                    failures.push(format!("{name} ({way:?}), interrupted at {target} of {instructions} ({place:#x}), {wrong}"));
                }
            };
            report(wrong, 0, 0);
            let mut target = 1 + ran % stride;
            while target <= instructions {
                let (wrong, place) = subject.run(orders, target);
                report(wrong, target, place);
                target += stride;
                runs += 1;
            }
            ran += 1;
        }
        if failures.len() > FAILURES {
            break;
        }
    }
    if timed < 3 && only.is_empty() {
        failures.push(format!("only {timed} guests ask for the time"));
    }
    failures.truncate(FAILURES);
    if failures.is_empty() {
        format!("{ran} {runs}")
    } else {
        failures.join("\n")
    }
}

#[test]
fn interruptions_at_every_host_instruction_change_nothing() {
    let Some((text, delivered)) = trace(child) else {
        return;
    };
    let numbers: Vec<u64> = text.split(' ').map_while(|n| n.parse().ok()).collect();
    let [guests, runs] = numbers[..] else {
        panic!("{text}");
    };
    assert_eq!(runs, delivered);
    eprintln!("{guests} guests, {runs} interruptions");
    assert!(
        guests > 300 || std::env::var_os("TOLLGATE_ONLY").is_some(),
        "only {guests} guests"
    );
}

/// A guest that executes an IRETD which loads EFLAGS.RF, then a load and the end.
fn returning_with_resume_flag() -> Guest {
    let mut guest = guests()
        .into_iter()
        .find(|guest| guest.bits == 32 && guest.scene == Scene::Data && guest.state.cpl() == 0)
        .expect("there are guests of flat 32-bit code");
    let target = guest.eip + 0x20;
    guest.code = vec![0xcf];
    put(&mut guest.memory, guest.eip, &[0xcf]);
    // mov eax, [ebx]; nop
    put(&mut guest.memory, target, &[0x8b, 0x03, 0x90]);
    put(&mut guest.memory, target + 3, &EXIT);
    let stack = guest.state.gpr[4] as u32;
    let code = u32::from(guest.state.cs().selector.0);
    for (index, value) in [target, code, (Flags::RF.bits() | 2) as u32]
        .into_iter()
        .enumerate()
    {
        put(
            &mut guest.memory,
            stack + 4 * index as u32,
            &value.to_le_bytes(),
        );
    }
    guest
}

fn resume_flag_child(orders: &Orders) -> String {
    let guest = returning_with_resume_flag();
    let Some((moments, machine)) = moments(&guest) else {
        return "the guest does not end".into();
    };
    let holds: Vec<bool> = moments
        .iter()
        .map(|moment| moment.cpu.flags().contains(Flags::RF))
        .collect();
    if holds[..4] != [false, true, false, false] {
        return format!("RF is not set for one instruction: {holds:?}");
    }
    let mut subject = Subject {
        guest: &guest,
        is_timed: false,
        moments,
        machine,
        way: Way::Cold,
    };
    let mut runs = 0;
    for way in [Way::Cold, Way::Warm, Way::Spilled] {
        subject.way = way;
        let (mut wrong, instructions) = subject.run(orders, COUNT);
        for target in 1..=instructions {
            wrong = wrong.or_else(|| subject.run(orders, target).0);
            if let Some(wrong) = wrong {
                return format!("{way:?}, interrupted at {target}: {wrong}");
            }
            runs += 1;
        }
    }
    runs.to_string()
}

#[test]
fn the_resume_flag_that_iret_loads_holds_until_its_instruction_has_completed() {
    let Some((text, delivered)) = trace(resume_flag_child) else {
        return;
    };
    assert_eq!(text.parse(), Ok(delivered), "{text}");
    assert!(delivered > 10, "{delivered}");
}
