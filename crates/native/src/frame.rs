//! The signal frame: what the kernel stores on the runner's signal stack when a program leaves
//! native code, and loads when the handler returns (`struct rt_sigframe` of x86-64).
//!
//! The kernel always puts it in the same place. That place is learnt from the first frame, which is
//! made before any guest code has run; what the frames hold is the guest's and trusted in nothing.

use crate::exit::{Death, Exit, SystemCall};
use crate::filters::X86_64;
use crate::image::SIGNAL_STACK_FLAGS;
use crate::layout::{Layout, PAGE, announce, control};
use crate::shared_memory::SharedPages;
use crate::state::{Selectors, UserState};
use std::ops::Range;

/// A signal that the runner handles, and the vectors of the exceptions that the kernel reports by it.
pub struct Signal {
    pub number: i32,
    vectors: &'static [u8],
}

/// The signal of a kick.
pub const KICK: i32 = libc::SIGUSR1;

/// All signals that the runner handles.
pub const SIGNALS: [Signal; 7] = [
    Signal {
        number: libc::SIGSEGV,
        vectors: &[4, 5, 13, 14, 21],
    },
    Signal {
        number: libc::SIGBUS,
        vectors: &[11, 12, 17],
    },
    Signal {
        number: libc::SIGILL,
        vectors: &[6],
    },
    Signal {
        number: libc::SIGFPE,
        vectors: &[0, 16, 19],
    },
    Signal {
        number: libc::SIGTRAP,
        vectors: &[1, 3],
    },
    Signal {
        number: libc::SIGSYS,
        vectors: &[],
    },
    Signal {
        number: KICK,
        vectors: &[],
    },
];

// Offsets in the frame: the return address, `struct ucontext`, `struct siginfo`.
const UC_FLAGS: u64 = 8;
const UC_LINK: u64 = 16;
const UC_STACK: u64 = 24;
const REGISTERS: u64 = 48;
const RIP: u64 = REGISTERS + 128;
const RFLAGS: u64 = REGISTERS + 136;
const SELECTORS: u64 = REGISTERS + 144;
const ERROR: u64 = REGISTERS + 152;
const TRAP: u64 = REGISTERS + 160;
const CR2: u64 = REGISTERS + 176;
const VECTORS: u64 = REGISTERS + 184;
const SIGNAL_MASK: u64 = REGISTERS + 256;
const SIGINFO: u64 = SIGNAL_MASK + 8;
const SIGINFO_CODE: u64 = SIGINFO + 8;
const SIGINFO_CALL: u64 = SIGINFO + 16;
const SIGINFO_ARCHITECTURE: u64 = SIGINFO + 28;
const SIZE: u64 = SIGINFO + 128;

/// The numbers of general registers in the order of the frame.
const ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 3, 2, 0, 1, 4];

/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS: vectors by XRSTOR, SS as it is given.
const CONTEXT_FLAGS: u64 = 7;

// Offsets in the area of vectors (SDM volume 1, 13.4; the kernel's `struct _fpx_sw_bytes`).
const MXCSR: u64 = 24;
const SOFTWARE: Range<u64> = 464..512;
const SOFTWARE_MAGIC: u64 = 464;
const SOFTWARE_FEATURES: u64 = 472;
const SOFTWARE_SIZE: u64 = 480;
const HEADER: Range<u64> = 512..576;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;

/// The page of Linux' oldest fast system calls, whose calls the host's kernel emulates.
const VSYSCALL: Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;
/// `SYS_SECCOMP` and `SYS_USER_DISPATCH`: SIGSYS because of the filter (calls from the stub, and of
/// the page above), and because of where the call is made.
const CODES: [u32; 2] = [1, 2];
/// Length of SYSCALL and of INT 80h.
const CALL_LENGTH: u64 = 2;
/// USER and FETCH: the error code of a jump to what is not mapped.
const FETCH_ERROR: u32 = 0x14;

/// Where the frame is.
pub struct Frame {
    layout: Layout,
    /// Address in the process.
    address: u64,
    /// Address of the area of vectors in the process.
    vectors: u64,
    /// Its size, up to the second magic number.
    vectors_size: u64,
    /// The kernel's words in the unused part of the legacy area.
    software: [u64; 6],
    /// Components that the area has (bits as in XCR0).
    features: u64,
    /// Bits that MXCSR can have.
    mxcsr_mask: u32,
}

/// What a frame says.
pub enum Report {
    /// The kick's signal.
    Kick,
    /// The program has left for this reason.
    Exit(Exit),
    /// The process cannot be used any more.
    Broken(Death),
}

impl Frame {
    /// Finds the frame of the first signal, before any guest code has run.
    pub fn find(layout: Layout, pages: &SharedPages) -> Result<Self, String> {
        let address = pages.get(layout.shared_offset(layout.announce(announce::FRAME)));
        let stack = layout.stack();
        if !stack.contains(&address) || stack.end - address < SIZE || !address.is_multiple_of(8) {
            return Err(format!("the signal frame is at {address:#x}"));
        }
        let get = |at: u64| pages.get(layout.shared_offset(at));
        let signal = get(address + SIGINFO) as u32;
        if signal != libc::SIGSYS as u32 {
            return Err(format!("the first signal is {signal}"));
        }
        let vectors = get(address + VECTORS);
        if !stack.contains(&vectors)
            || stack.end - vectors < HEADER.end
            || !vectors.is_multiple_of(64)
        {
            return Err(format!("the vector registers are at {vectors:#x}"));
        }
        let vectors_size = get(vectors + SOFTWARE_SIZE) & 0xffff_ffff;
        let room = stack.end - vectors;
        if get(vectors + SOFTWARE_MAGIC) as u32 != MAGIC_1
            || vectors_size < HEADER.end
            || !vectors_size.is_multiple_of(8)
            || vectors_size + 4 > room
        {
            return Err("the host's kernel stores vector registers in an unknown form".to_owned());
        }
        let end = pages.word(layout.shared_offset(vectors + vectors_size));
        if end.load(std::sync::atomic::Ordering::Relaxed) != MAGIC_2 {
            return Err("the host's kernel stores vector registers in an unknown form".to_owned());
        }
        let mask = (get(vectors + MXCSR) >> 32) as u32;
        let mut software = [0; 6];
        for (index, word) in software.iter_mut().enumerate() {
            *word = get(vectors + SOFTWARE.start + 8 * index as u64);
        }
        Ok(Self {
            layout,
            address,
            vectors,
            vectors_size,
            software,
            features: get(vectors + SOFTWARE_FEATURES),
            mxcsr_mask: if mask == 0 { 0xffbf } else { mask },
        })
    }

    /// Where the vector registers are in the shared pages, and their size.
    pub const fn vectors(&self) -> (u64, usize) {
        let offset = self.layout.shared_offset(self.vectors);
        (offset, self.vectors_size as usize)
    }

    /// The components that the area of vectors holds (bits as in XCR0).
    pub const fn features(&self) -> u64 {
        self.features
    }

    /// Writes what the program will have when the handler returns.
    pub fn load(&self, pages: &SharedPages, state: &UserState) {
        let frame = self.layout.shared_offset(self.address);
        let set = |offset: u64, value: u64| pages.set(frame + offset, value);
        for (index, number) in ORDER.into_iter().enumerate() {
            set(REGISTERS + 8 * index as u64, state.gpr[number]);
        }
        set(RIP, state.rip);
        set(RFLAGS, state.loaded_flags());
        let Selectors {
            cs,
            ss,
            ds,
            es,
            fs,
            gs,
        } = state.selectors;
        set(SELECTORS, u64::from(cs) | u64::from(ss) << 48);
        // A program may have overwritten all the rest.
        set(UC_FLAGS, CONTEXT_FLAGS);
        set(UC_LINK, 0);
        let stack = self.layout.stack();
        set(UC_STACK, stack.start);
        set(UC_STACK + 8, u64::from(SIGNAL_STACK_FLAGS));
        set(UC_STACK + 16, self.layout.stack_pages * PAGE);
        set(VECTORS, self.vectors);
        set(SIGNAL_MASK, 0);
        self.mend_vectors(pages);
        let control = |word: u64| self.layout.shared_offset(self.layout.control(word));
        pages.set(control(control::FRAME_STACK), self.address + 8);
        pages.set(control(control::FS_BASE), state.fs_base);
        pages.set(control(control::GS_BASE), state.gs_base);
        pages.set(control(control::FLAGS), state.loaded_flags());
        let pair = |low: u16, high: u16| u64::from(low) | u64::from(high) << 32;
        pages.set(control(control::SELECTORS), pair(ds, es));
        pages.set(control(control::SELECTORS + 8), pair(fs, gs));
    }

    /// Makes the area of vectors one that XRSTOR accepts.
    fn mend_vectors(&self, pages: &SharedPages) {
        let area = self.layout.shared_offset(self.vectors);
        for (index, word) in self.software.into_iter().enumerate() {
            pages.set(area + SOFTWARE.start + 8 * index as u64, word);
        }
        let valid = pages.get(area + HEADER.start) & self.features;
        pages.set(area + HEADER.start, valid);
        for offset in (HEADER.start + 8..HEADER.end).step_by(8) {
            pages.set(area + offset, 0);
        }
        let mxcsr = pages.get(area + MXCSR) as u32 & self.mxcsr_mask;
        let mask = u64::from(self.mxcsr_mask) << 32;
        pages.set(area + MXCSR, u64::from(mxcsr) | mask);
        let (end, size) = self.vectors();
        pages
            .word(end + size as u64)
            .store(MAGIC_2, std::sync::atomic::Ordering::Relaxed);
    }

    /// Reads what the program had when it left, and why it left.
    pub fn read(&self, pages: &SharedPages, state: &mut UserState) -> Report {
        let announced =
            |word: u64| pages.get(self.layout.shared_offset(self.layout.announce(word)));
        if announced(announce::FRAME) != self.address {
            return Report::Broken(Death::Inconsistent);
        }
        let frame = self.layout.shared_offset(self.address);
        let get = |offset: u64| pages.get(frame + offset);
        for (index, number) in ORDER.into_iter().enumerate() {
            state.gpr[number] = get(REGISTERS + 8 * index as u64);
        }
        state.rip = get(RIP);
        state.read_flags(get(RFLAGS));
        state.fs_base = announced(announce::FS_BASE);
        state.gs_base = announced(announce::GS_BASE);
        let code_and_stack = get(SELECTORS);
        let data = announced(announce::SELECTORS);
        let thread = announced(announce::SELECTORS + 8);
        state.selectors = Selectors {
            cs: code_and_stack as u16,
            ss: (code_and_stack >> 48) as u16,
            ds: data as u16,
            es: (data >> 32) as u16,
            fs: thread as u16,
            gs: (thread >> 32) as u16,
        };
        self.reason(&get, state)
    }

    fn reason(&self, get: &impl Fn(u64) -> u64, state: &mut UserState) -> Report {
        let signal = get(SIGINFO) as u32;
        let Some(signal) = SIGNALS.iter().find(|it| it.number as u32 == signal) else {
            return Report::Broken(Death::Inconsistent);
        };
        if self.layout.reserved().contains(&state.rip) {
            // The program has jumped into the stub. For the guest nothing is mapped there.
            return Report::Exit(Exit::PageFault {
                address: state.rip,
                error_code: FETCH_ERROR,
            });
        }
        let vector = get(TRAP) as u8;
        let error_code = get(ERROR) as u32;
        Report::Exit(match signal.number {
            KICK => return Report::Kick,
            libc::SIGSYS if CODES.contains(&(get(SIGINFO_CODE) as u32)) => system_call(get, state),
            libc::SIGSEGV if vector == 14 => Exit::PageFault {
                address: get(CR2),
                error_code,
            },
            // Guest RAM is in the file, so the host could not provide the page.
            libc::SIGBUS if vector == 14 || vector == 18 => {
                return Report::Broken(Death::MemoryUnavailable);
            }
            _ if signal.vectors.contains(&vector) => Exit::Exception { vector, error_code },
            _ => return Report::Broken(Death::Inconsistent),
        })
    }
}

/// A call that the filter has refused: puts RIP back to the instruction.
fn system_call(get: &impl Fn(u64) -> u64, state: &mut UserState) -> Exit {
    let call = get(SIGINFO_CALL);
    if VSYSCALL.contains(&call) {
        // The kernel has emulated the RET of the page's function, too.
        state.rip = call;
        state.gpr[4] = state.gpr[4].wrapping_sub(8);
        return Exit::PageFault {
            address: call,
            error_code: FETCH_ERROR | 1,
        };
    }
    state.rip = state.rip.wrapping_sub(CALL_LENGTH);
    let architecture = (get(SIGINFO_ARCHITECTURE - 4) >> 32) as u32;
    Exit::SystemCall(if architecture == X86_64 {
        SystemCall::Syscall
    } else {
        SystemCall::Interrupt80
    })
}
