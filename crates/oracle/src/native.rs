//! Runs a test case on the host's own processor, in a compatibility-mode segment or in Linux's
//! 64-bit one.
//!
//! This is the only unsafe module. A run consists of XRSTOR, loading the data segments, and IRETQ
//! to a stub in Linux's 32-bit code segment, which loads SS and jumps to the case's CS:EIP; 64-bit
//! code needs no stub, and gets its own bases of FS and GS. Every run ends in a signal, whose frame
//! is the outcome; the handler restores the bases of FS and GS, copies the frame and returns to the
//! caller without sigreturn.
//!
//! 32-bit segments only reach memory below 4 GiB, where only the window and the stub are mapped.
//! 64-bit code could reach the whole process, but no register holds an address that belongs to it.
//! The generator excludes system calls ([`crate::exclusions`]).

use crate::case::{Case, Input, Outcome, components, normalize};
use crate::layout::{
    Access, HIGH_WINDOW, PAGE, PAGE_ACCESS, PAGES, USER_CODE, USER_CODE64, USER_DATA, WINDOW,
    WINDOW_BYTES, World,
};
use std::arch::naked_asm;
use std::io;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use tollgate_emulate::cpuid::policy_of;
use tollgate_x86::CpuModel;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{COMPACTED, EXTENDED, EXTENDED_REGION, XCOMP_BV, component};

/// Linear address of the stub's page.
const STUB: u32 = 0x5d3a_7000;
/// Offset in the stub's page of SS, followed by the far pointer to the case.
const STUB_DATA: usize = 0x800;
/// Processor time after which a run counts as endless, in nanoseconds.
const WATCHDOG: i64 = 100_000_000;
/// Size in bytes of the stack for signals.
const SIGNAL_STACK: usize = 1 << 17;

/// An XSAVE area with the alignment that XRSTOR needs.
#[repr(C, align(64))]
struct Area([u8; XSAVE_SIZE]);

/// The data that the assembly code shares with Rust.
#[repr(C)]
struct Frame {
    host_rsp: u64,
    /// The components of `vector` that are loaded.
    components: u64,
    fs_base: u64,
    gs_base: u64,
    gpr: [u64; 16],
    flags: u64,
    /// The initial CS and RIP.
    code_selector: u64,
    start: u64,
    /// 1 for 64-bit code, with these bases of FS and GS, which are read back at the end.
    long: u64,
    bases: [u64; 2],
    /// The initial ES, DS, FS and GS, which are read back at the end.
    data_selectors: [u16; 4],
    ended: [u16; 4],
    /// The following fields are set by the handler.
    signal: u64,
    registers: [i64; 23],
    vector: Area,
}

static FRAME: AtomicPtr<Frame> = AtomicPtr::new(ptr::null_mut());
/// 1 while 64-bit code runs, for which every signal is an outcome.
static LONG_RUN: AtomicU64 = AtomicU64::new(0);
/// The previous handlers, by signal number.
static PREVIOUS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];
/// Locked by the only user of the window and the segments in this process.
static IN_USE: Mutex<()> = Mutex::new(());

/// Enters the stub; returns when a signal has ended the run.
///
/// # Safety
///
/// `frame` is [`FRAME`]; stub, window, segments, handlers and the signal stack are set up.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter(frame: *mut Frame) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + {host_rsp}], rsp",
        "rdfsbase rax",
        "mov [rdi + {fs_base}], rax",
        "rdgsbase rax",
        "mov [rdi + {gs_base}], rax",
        "mov eax, [rdi + {components}]",
        "xor edx, edx",
        "xrstor [rdi + {vector}]",
        "mov r8w, [rdi + {selectors}]",
        "mov es, r8w",
        "mov r8w, [rdi + {selectors} + 2]",
        "mov ds, r8w",
        "mov r8w, [rdi + {selectors} + 4]",
        "mov fs, r8w",
        "mov r8w, [rdi + {selectors} + 6]",
        "mov gs, r8w",
        "mov rax, [rdi + {long}]",
        "test rax, rax",
        "je 2f",
        "mov [rip + {long_run}], rax",
        "mov rax, [rdi + {bases}]",
        "wrfsbase rax",
        "mov rax, [rdi + {bases} + 8]",
        "wrgsbase rax",
        "2:",
        // Pushes SS, RSP, RFLAGS, CS and RIP.
        "push {user_data}",
        "push qword ptr [rdi + {gpr} + 4*8]",
        "push qword ptr [rdi + {flags}]",
        "push qword ptr [rdi + {code_selector}]",
        "push qword ptr [rdi + {start}]",
        "mov rax, [rdi + {gpr}]",
        "mov rcx, [rdi + {gpr} + 1*8]",
        "mov rdx, [rdi + {gpr} + 2*8]",
        "mov rbx, [rdi + {gpr} + 3*8]",
        "mov rbp, [rdi + {gpr} + 5*8]",
        "mov rsi, [rdi + {gpr} + 6*8]",
        "mov r8, [rdi + {gpr} + 8*8]",
        "mov r9, [rdi + {gpr} + 9*8]",
        "mov r10, [rdi + {gpr} + 10*8]",
        "mov r11, [rdi + {gpr} + 11*8]",
        "mov r12, [rdi + {gpr} + 12*8]",
        "mov r13, [rdi + {gpr} + 13*8]",
        "mov r14, [rdi + {gpr} + 14*8]",
        "mov r15, [rdi + {gpr} + 15*8]",
        "mov rdi, [rdi + {gpr} + 7*8]",
        "iretq",
        host_rsp = const offset_of!(Frame, host_rsp),
        fs_base = const offset_of!(Frame, fs_base),
        gs_base = const offset_of!(Frame, gs_base),
        vector = const offset_of!(Frame, vector),
        components = const offset_of!(Frame, components),
        selectors = const offset_of!(Frame, data_selectors),
        gpr = const offset_of!(Frame, gpr),
        flags = const offset_of!(Frame, flags),
        user_data = const USER_DATA,
        code_selector = const offset_of!(Frame, code_selector),
        start = const offset_of!(Frame, start),
        long = const offset_of!(Frame, long),
        bases = const offset_of!(Frame, bases),
        long_run = sym LONG_RUN,
    )
}

/// The handler of all signals. A signal that interrupted 64-bit code outside a run is passed to the
/// previous handler; all others end a native run.
///
/// # Safety
///
/// Only the kernel may call it.
#[unsafe(naked)]
unsafe extern "C" fn on_signal() {
    naked_asm!(
        "cmp qword ptr [rip + {long_run}], 0",
        "jne 4f",
        "movzx eax, word ptr [rdx + {cs}]",
        "cmp eax, 0x33",
        "je 2f",
        "4:",
        "mov r12, [rip + {frame}]",
        "rdfsbase rax",
        "mov [r12 + {bases}], rax",
        "rdgsbase rax",
        "mov [r12 + {bases} + 8], rax",
        "mov [r12 + {ended}], es",
        "mov [r12 + {ended} + 2], ds",
        "mov [r12 + {ended} + 4], fs",
        "mov [r12 + {ended} + 6], gs",
        "xor eax, eax",
        "mov fs, ax",
        "mov gs, ax",
        "mov rax, [r12 + {fs_base}]",
        "wrfsbase rax",
        "mov rax, [r12 + {gs_base}]",
        "wrgsbase rax",
        "mov eax, 0x2b",
        "mov ds, ax",
        "mov es, ax",
        "mov qword ptr [rip + {long_run}], 0",
        // Clears NT, which would make the next IRETQ fault.
        "push 2",
        "popfq",
        "mov rsi, rdx",
        "mov rdx, r12",
        "sub rsp, 8",
        "call {collect}",
        "mov rsp, [r12 + {host_rsp}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        "2:",
        "lea rax, [rip + {previous}]",
        "mov rax, [rax + rdi*8]",
        "test rax, rax",
        "je 3f",
        "jmp rax",
        "3:",
        "ret",
        cs = const offset_of!(libc::ucontext_t, uc_mcontext)
            + offset_of!(libc::mcontext_t, gregs)
            + libc::REG_CSGSFS as usize * 8,
        frame = sym FRAME,
        long_run = sym LONG_RUN,
        bases = const offset_of!(Frame, bases),
        ended = const offset_of!(Frame, ended),
        fs_base = const offset_of!(Frame, fs_base),
        gs_base = const offset_of!(Frame, gs_base),
        host_rsp = const offset_of!(Frame, host_rsp),
        collect = sym collect,
        previous = sym PREVIOUS,
    )
}

/// Copies what the kernel saved. Runs on the signal stack.
///
/// # Safety
///
/// `context` comes from the kernel, and `frame` is the one that the run was entered with.
unsafe extern "sysv64" fn collect(
    signal: u64,
    context: *const libc::ucontext_t,
    frame: *mut Frame,
) {
    // SAFETY: the caller guarantees that both are valid; nothing else accesses the frame during a
    // run.
    let (context, frame) = unsafe { (&*context, &mut *frame) };
    frame.signal = signal;
    frame.registers.copy_from_slice(&context.uc_mcontext.gregs);
    let area = context.uc_mcontext.fpregs.cast::<u8>();
    let vector = &mut frame.vector.0;
    // SAFETY: on a host with AVX, the kernel saves the legacy region and the header.
    unsafe { ptr::copy_nonoverlapping(area, vector.as_mut_ptr(), EXTENDED_REGION) };
    for (index, part) in EXTENDED.iter().enumerate() {
        if frame.components & part.bit != 0 {
            let offset = policy_of(CpuModel::Host).component_offset(index);
            // SAFETY: the kernel saves the components in XCR0 in the standard format, whose offsets
            // CPUID reports.
            let saved = unsafe { std::slice::from_raw_parts(area.add(offset), part.size) };
            vector[part.start..part.start + part.size].copy_from_slice(saved);
        }
    }
}

/// The host's processor, ready to run cases. Only one value can exist in a process at a time.
pub struct Native {
    alias: *mut u8,
    stub: *mut u8,
    frame: Box<Frame>,
    timer: libc::timer_t,
    previous_stack: libc::stack_t,
    _signal_stack: Vec<u8>,
    _lock: MutexGuard<'static, ()>,
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn map(
    address: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    file: i32,
    offset: usize,
) -> io::Result<*mut u8> {
    let fixed = if address == 0 {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    // SAFETY: a new mapping that replaces none.
    let start = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes,
            protection,
            flags | fixed | libc::MAP_POPULATE,
            file,
            offset as libc::off_t,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if address != 0 && start as usize != address {
        return Err(io::Error::other("the window's addresses are in use"));
    }
    Ok(start.cast())
}

/// Maps the window at its addresses, and a second time for our own accesses; returns the latter.
fn map_window() -> io::Result<*mut u8> {
    // SAFETY: the name is a terminated string.
    let file = unsafe { libc::memfd_create(c"oracle-window".as_ptr(), libc::MFD_CLOEXEC) };
    check(i64::from(file))?;
    // SAFETY: a plain system call on our descriptor.
    check(i64::from(unsafe {
        libc::ftruncate(file, WINDOW_BYTES as libc::off_t)
    }))?;
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let alias = map(0, WINDOW_BYTES, write, libc::MAP_SHARED, file, 0)?;
    for (page, access) in PAGE_ACCESS.into_iter().enumerate() {
        let protection = match access {
            Access::None => continue,
            Access::Code => libc::PROT_READ | libc::PROT_EXEC,
            Access::Read => libc::PROT_READ,
            Access::Write => write,
        };
        for window in [WINDOW, HIGH_WINDOW] {
            let address = window as usize + page * PAGE;
            map(
                address,
                PAGE,
                protection,
                libc::MAP_SHARED,
                file,
                page * PAGE,
            )?;
        }
    }
    // SAFETY: the descriptor is ours; the mappings keep the file.
    unsafe { libc::close(file) };
    Ok(alias)
}

/// Maps the page with the stub, which is writable at the same address.
fn map_stub() -> io::Result<*mut u8> {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let stub = map(STUB as usize, PAGE, all, flags, -1, 0)?;
    let data = STUB + STUB_DATA as u32;
    // mov ss, cs:[data]; jmp far cs:[data + 4]
    let mut code = vec![0x2e, 0x8e, 0x15];
    code.extend_from_slice(&data.to_le_bytes());
    code.extend_from_slice(&[0x2e, 0xff, 0x2d]);
    code.extend_from_slice(&(data + 4).to_le_bytes());
    // SAFETY: the page is ours and large enough.
    unsafe { ptr::copy_nonoverlapping(code.as_ptr(), stub, code.len()) };
    Ok(stub)
}

const SIGNALS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGVTALRM,
];

fn install_handlers() -> io::Result<()> {
    tollgate_engine::signals::install()?;
    for signal in SIGNALS {
        // SAFETY: an all-zero sigaction is a valid starting value.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        action.sa_sigaction = on_signal as *const () as usize;
        // The handler does not return by sigreturn, so the signal must not stay blocked.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the action is initialized; the handler is async-signal-safe.
        check(i64::from(unsafe {
            libc::sigaction(signal, &action, &mut previous)
        }))?;
        if previous.sa_sigaction != action.sa_sigaction {
            PREVIOUS[signal as usize].store(previous.sa_sigaction, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// Makes a timer that signals this thread by its processor time.
fn start_watchdog() -> io::Result<libc::timer_t> {
    // SAFETY: an all-zero sigevent is a valid starting value.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGVTALRM;
    // SAFETY: gettid has no preconditions.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer: libc::timer_t = ptr::null_mut();
    // SAFETY: both pointers refer to live, initialized values.
    check(i64::from(unsafe {
        libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &mut event, &mut timer)
    }))?;
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: WATCHDOG,
    };
    let value = libc::itimerspec {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the timer is ours and the value is initialized.
    check(i64::from(unsafe {
        libc::timer_settime(timer, 0, &value, ptr::null_mut())
    }))?;
    Ok(timer)
}

impl Native {
    /// Takes the window's addresses; waits while another thread uses them.
    ///
    /// # Errors
    ///
    /// The host refused a mapping, a descriptor or a signal handler.
    pub fn new() -> io::Result<Self> {
        let lock = IN_USE.lock().unwrap_or_else(|poison| poison.into_inner());
        let alias = map_window()?;
        let stub = map_stub()?;
        crate::local_descriptors::has_locals();
        install_handlers()?;
        let mut signal_stack = vec![0u8; SIGNAL_STACK];
        let stack = libc::stack_t {
            ss_sp: signal_stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: SIGNAL_STACK,
        };
        let mut previous_stack = stack;
        // SAFETY: the stack lives as long as this value, which stays on this thread.
        check(i64::from(unsafe {
            libc::sigaltstack(&stack, &mut previous_stack)
        }))?;
        Ok(Self {
            alias,
            stub,
            frame: Box::new(Frame {
                host_rsp: 0,
                components: components(),
                fs_base: 0,
                gs_base: 0,
                gpr: [0; 16],
                flags: 0,
                code_selector: 0,
                start: 0,
                long: 0,
                bases: [0; 2],
                data_selectors: [0; 4],
                ended: [0; 4],
                signal: 0,
                registers: [0; 23],
                vector: Area([0; XSAVE_SIZE]),
            }),
            timer: start_watchdog()?,
            previous_stack,
            _signal_stack: signal_stack,
            _lock: lock,
        })
    }

    /// The window, as the code sees it.
    pub fn memory(&self) -> &[u8; WINDOW_BYTES] {
        // SAFETY: the alias has this many bytes; native code runs only in `run`, which borrows this
        // value mutably.
        unsafe { &*self.alias.cast() }
    }

    /// The window, to be changed.
    pub fn memory_mut(&mut self) -> &mut [u8; WINDOW_BYTES] {
        // SAFETY: the same reason as in `memory`.
        unsafe { &mut *self.alias.cast() }
    }

    /// Runs the code in the window once.
    pub fn run(&mut self, case: &Case, input: &Input) -> Outcome {
        let selectors = case.world.selectors();
        let start = crate::encode::rip_of(case.world, case.at);
        let mut data = [0u8; 12];
        data[..2].copy_from_slice(&selectors[2].to_le_bytes());
        data[4..8].copy_from_slice(&(start as u32).to_le_bytes());
        data[8..10].copy_from_slice(&selectors[1].to_le_bytes());
        // SAFETY: the stub's page is ours.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.stub.add(STUB_DATA), data.len()) };
        let frame: *mut Frame = &mut *self.frame;
        self.frame.gpr = input.gpr;
        self.frame.long = u64::from(case.world.is_long());
        self.frame.bases = case.world.thread_bases();
        (self.frame.code_selector, self.frame.start) = if case.world.is_long() {
            (u64::from(USER_CODE64), start)
        } else {
            (u64::from(USER_CODE), u64::from(STUB))
        };
        self.frame.flags = u64::from(input.flags | 0x202);
        self.frame.data_selectors = [selectors[0], selectors[3], selectors[4], selectors[5]];
        self.frame.vector.0.copy_from_slice(&input.vector[..]);
        if self.frame.components & component::AVX_512 != 0 {
            let format = COMPACTED | self.frame.components;
            self.frame.vector.0[XCOMP_BV..XCOMP_BV + 8].copy_from_slice(&format.to_le_bytes());
        }
        FRAME.store(frame, Ordering::SeqCst);
        // SAFETY: `new` has set up everything and holds the lock; the area was made by the
        // generator or by the reader of reproducers, which `sanitize` it.
        unsafe { enter(frame) };
        self.outcome(case.world)
    }

    fn outcome(&self, world: World) -> Outcome {
        let frame = &*self.frame;
        if frame.signal == libc::SIGVTALRM as u64 {
            return Outcome::without_registers(Outcome::ENDLESS);
        }
        let register = |index: i32| frame.registers[index as usize] as u64;
        let vector = register(libc::REG_TRAPNO) as u8;
        let mut vector_state = Box::new(frame.vector.0);
        normalize(&mut vector_state, world);
        let mask = world.mask();
        let segments = register(libc::REG_CSGSFS);
        Outcome {
            vector,
            error: if matches!(vector, 8 | 10..=14 | 17) {
                register(libc::REG_ERR) as u32
            } else {
                0
            },
            cr2: if vector == 14 {
                register(libc::REG_CR2) & mask
            } else {
                0
            },
            rip: register(libc::REG_RIP) & mask,
            gpr: [
                libc::REG_RAX,
                libc::REG_RCX,
                libc::REG_RDX,
                libc::REG_RBX,
                libc::REG_RSP,
                libc::REG_RBP,
                libc::REG_RSI,
                libc::REG_RDI,
                libc::REG_R8,
                libc::REG_R9,
                libc::REG_R10,
                libc::REG_R11,
                libc::REG_R12,
                libc::REG_R13,
                libc::REG_R14,
                libc::REG_R15,
            ]
            .map(|index| {
                if world.is_long() || !(libc::REG_R8..=libc::REG_R15).contains(&index) {
                    register(index) & mask
                } else {
                    0
                }
            }),
            flags: register(libc::REG_EFL) as u32,
            selectors: [
                frame.ended[0],
                segments as u16,
                (segments >> 48) as u16,
                frame.ended[1],
                frame.ended[2],
                frame.ended[3],
            ],
            bases: if world.is_long() { frame.bases } else { [0; 2] },
            vector_state,
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: the timer and the mappings are ours, and no code runs in them any more. The
        // alternate stack is deactivated before its memory is freed.
        unsafe {
            libc::timer_delete(self.timer);
            libc::sigaltstack(&self.previous_stack, ptr::null_mut());
            libc::munmap(self.stub.cast(), PAGE);
            libc::munmap(self.alias.cast(), WINDOW_BYTES);
            for window in [WINDOW, HIGH_WINDOW] {
                libc::munmap(window as usize as *mut libc::c_void, PAGES * PAGE);
            }
        }
    }
}
