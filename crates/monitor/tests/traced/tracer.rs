//! Delivers the kick signal to a child process exactly before a chosen host instruction of those
//! that the child executes in emitted code and while entering and leaving it.
//!
//! The child chooses the instruction (see [`Orders`]). The parent stops the child with a breakpoint
//! at the entry of emitted code, and then lets it execute one instruction after the other.

use std::mem::offset_of;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tollgate_engine::Context;
use tollgate_engine::abi::context::BIAS;
use tollgate_engine::gate::{entry, interrupted_string, store_check};
use tollgate_engine::signals::kick_signal;
use tollgate_test_support::skip;

/// Maximum length of the child's text.
const TEXT: usize = 1 << 16;
/// The value of [`Orders::target`] that only counts instructions.
pub const COUNT: u64 = u64::MAX;

/// The memory that parent and child share.
#[repr(C)]
pub struct Orders {
    /// The number of the host instruction before which the signal is sent, counted from 1. 0 means
    /// that the parent waits for nothing.
    target: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// The answer: how many host instructions there were, or the address before which the signal
    /// was sent.
    answer: AtomicU64,
    /// The number of signals delivered in all runs.
    pub delivered: AtomicU64,
    length: AtomicU64,
    text: [AtomicU64; TEXT / 8],
}

impl Orders {
    fn shared() -> &'static Orders {
        // SAFETY: the mapping is new and anonymous.
        let memory = unsafe {
            libc::mmap(
                null_mut(),
                size_of::<Orders>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the memory is zeroed, aligned, large enough and never unmapped; all fields are
        // atomic.
        unsafe { &*memory.cast::<Orders>() }
    }

    /// Called in the child: runs `body` with the signal before the host instruction `target`.
    /// Emitted code lies in `code`. Returns how many host instructions there were, or the address
    /// of `target` if it is one of them.
    pub fn run<T>(&self, target: u64, code: Range<u64>, body: impl FnOnce() -> T) -> (T, u64) {
        self.start.store(code.start, SeqCst);
        self.end.store(code.end, SeqCst);
        self.target.store(target, SeqCst);
        stop();
        let result = body();
        self.target.store(0, SeqCst);
        stop();
        (result, self.answer.load(SeqCst))
    }

    fn report(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(TEXT)];
        for (place, chunk) in self.text.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            place.store(u64::from_le_bytes(word), SeqCst);
        }
        self.length.store(bytes.len() as u64, SeqCst);
    }

    fn text(&self) -> String {
        let words = self
            .text
            .iter()
            .flat_map(|word| word.load(SeqCst).to_le_bytes());
        let bytes: Vec<u8> = words.take(self.length.load(SeqCst) as usize).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn stop() {
    // SAFETY: the call stops this process for its tracer.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Runs `child` in a child process. Returns the child's report, and how many signals were
/// delivered. Returns `None`, and prints a line that says so, if the host does not let processes
/// trace their children.
pub fn trace(child: impl FnOnce(&Orders) -> String) -> Option<(String, u64)> {
    let orders = Orders::shared();
    // SAFETY: the child has one thread and leaves by _exit; the allocator survives fork.
    let process = unsafe { libc::fork() };
    assert!(process >= 0);
    if process == 0 {
        // SAFETY: no pointers are used.
        if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } != 0 {
            // SAFETY: the call ends only this process.
            unsafe { libc::_exit(2) };
        }
        stop();
        let body = std::panic::AssertUnwindSafe(|| child(orders));
        let text = std::panic::catch_unwind(body).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>();
            text.cloned().unwrap_or_else(|| "a panic".into())
        });
        orders.report(&text);
        // SAFETY: the call ends only this process.
        unsafe { libc::_exit(0) };
    }
    let mut tracer = Tracer {
        process,
        orders,
        phase: Phase::Idle,
        code: 0..0,
        context: 0,
        count: 0,
        entered: 0,
        starts: Vec::new(),
    };
    match tracer.follow() {
        0 => Some((orders.text(), orders.delivered.load(SeqCst))),
        2 => {
            skip::impossible("this host does not let a process trace its child (ptrace)");
            None
        }
        status => panic!("the child ended with {status}: {}", orders.text()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The child does nothing that the parent must follow.
    Idle,
    /// A breakpoint waits for the child at the entry of emitted code.
    Awaiting,
    /// The child executes one instruction after the other.
    Stepping,
    /// The child has just executed the instruction under the breakpoint.
    Passing,
}

struct Tracer<'a> {
    process: libc::pid_t,
    orders: &'a Orders,
    phase: Phase,
    code: Range<u64>,
    /// The address of the child's context.
    context: u64,
    /// The number of instructions so far in this run.
    count: u64,
    /// How often emitted code was entered in this run.
    entered: usize,
    /// The value of `count` at each entry, from the run that only counted.
    starts: Vec<u64>,
}

impl Tracer<'_> {
    fn request(&self, request: libc::c_uint, address: u64, data: u64) -> i64 {
        // SAFETY: the callers pass data that the request expects.
        let result = unsafe { libc::ptrace(request, self.process, address, data) };
        assert!(
            result != -1,
            "ptrace {request}: {}",
            std::io::Error::last_os_error()
        );
        result
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: an all-zero structure is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, 0, &raw mut registers as u64);
        registers
    }

    fn set_breakpoint(&self, set: bool) {
        let at = entry::addresses().start;
        // SAFETY: the child is a fork of this process, so its code has the same addresses.
        let word = unsafe { (at as *const u64).read_unaligned() };
        let word = if set { word & !0xff | 0xcc } else { word };
        self.request(libc::PTRACE_POKETEXT, at, word);
    }

    fn is_inside(&self, pc: u64) -> bool {
        self.code.contains(&pc)
            || entry::addresses().contains(&pc)
            || store_check::is_here(pc)
            || interrupted_string::is_here(pc)
    }

    /// Follows the child until it ends. Returns its status.
    fn follow(&mut self) -> i32 {
        let mut status = 0;
        loop {
            // SAFETY: the call waits for our child; `status` receives the answer.
            let waited = unsafe { libc::waitpid(self.process, &mut status, 0) };
            assert_eq!(waited, self.process);
            if libc::WIFEXITED(status) {
                return libc::WEXITSTATUS(status);
            }
            if libc::WIFSIGNALED(status) {
                return -libc::WTERMSIG(status);
            }
            match libc::WSTOPSIG(status) {
                libc::SIGSTOP => self.take_orders(),
                libc::SIGTRAP if self.phase == Phase::Awaiting => self.entered(),
                libc::SIGTRAP if self.phase == Phase::Stepping => self.stepped(),
                libc::SIGTRAP if self.phase == Phase::Passing => self.await_entry(),
                signal => {
                    let go_on = match self.phase {
                        Phase::Stepping => libc::PTRACE_SINGLESTEP,
                        _ => libc::PTRACE_CONT,
                    };
                    self.request(go_on, 0, signal as u64);
                }
            }
        }
    }

    fn await_entry(&mut self) {
        self.phase = Phase::Awaiting;
        self.set_breakpoint(true);
        self.request(libc::PTRACE_CONT, 0, 0);
    }

    fn take_orders(&mut self) {
        // The child ends with this process, whatever happens.
        let kill = libc::PTRACE_O_EXITKILL as u64;
        self.request(libc::PTRACE_SETOPTIONS, 0, kill);
        let target = self.orders.target.load(SeqCst);
        if target != 0 {
            self.code = self.orders.start.load(SeqCst)..self.orders.end.load(SeqCst);
            (self.count, self.entered) = (0, 0);
            if target == COUNT {
                self.starts.clear();
            }
            self.orders.answer.store(0, SeqCst);
            self.await_entry();
            return;
        }
        if self.phase != Phase::Idle {
            self.set_breakpoint(false);
            self.phase = Phase::Idle;
            self.orders.answer.store(self.count, SeqCst);
        }
        self.request(libc::PTRACE_CONT, 0, 0);
    }

    fn entered(&mut self) {
        let mut registers = self.registers();
        registers.rip -= 1;
        assert_eq!(registers.rip, entry::addresses().start);
        // Only RIP is written: if all registers were written, a base of GS in the upper half (an
        // anchor) would be refused.
        let rip = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, rip);
        self.request(libc::PTRACE_POKEUSER, rip as u64, registers.rip);
        self.set_breakpoint(false);
        self.context = registers.rdi - BIAS as u64;
        self.entered += 1;
        let target = self.orders.target.load(SeqCst);
        if target == COUNT {
            self.starts.push(self.count);
        } else if let Some(&next) = self.starts.get(self.entered)
            && next < target
        {
            // The target is not between this entry and the next, so these instructions are not
            // stepped through.
            self.count = next;
            self.phase = Phase::Passing;
            self.request(libc::PTRACE_SINGLESTEP, 0, 0);
            return;
        }
        self.phase = Phase::Stepping;
        self.stepped();
    }

    fn stepped(&mut self) {
        let pc = self.registers().rip;
        if !self.is_inside(pc) {
            self.await_entry();
            return;
        }
        self.count += 1;
        if self.count == self.orders.target.load(SeqCst) {
            self.deliver(pc);
        } else {
            self.request(libc::PTRACE_SINGLESTEP, 0, 0);
        }
    }

    /// The address of the word that asks the child's vCPU to leave.
    fn pending(&self) -> u64 {
        let field = self.context + offset_of!(Context, hot.pending) as u64;
        self.request(libc::PTRACE_PEEKDATA, field, 0) as u64
    }

    /// Sends the signal in the form in which the vCPU's timer sends it.
    fn deliver(&mut self, pc: u64) {
        /// The siginfo_t of signals that carry a value.
        #[repr(C)]
        struct Information {
            signal: i32,
            error: i32,
            code: i32,
            _padding: i32,
            timer: i32,
            overrun: i32,
            value: u64,
            _rest: [u64; 12],
        }
        const { assert!(size_of::<Information>() == size_of::<libc::siginfo_t>()) };
        let information = Information {
            signal: kick_signal(),
            error: 0,
            code: libc::SI_TIMER,
            _padding: 0,
            timer: 0,
            overrun: 0,
            value: self.pending(),
            _rest: [0; 12],
        };
        self.request(libc::PTRACE_SETSIGINFO, 0, &raw const information as u64);
        self.orders.answer.store(pc, SeqCst);
        self.orders.delivered.fetch_add(1, SeqCst);
        self.phase = Phase::Idle;
        self.request(libc::PTRACE_CONT, 0, kick_signal() as u64);
    }
}
