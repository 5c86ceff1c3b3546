//! The process's policy, and how a thread comes under it.

use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

use seccompiler::BpfProgram;

use crate::calls::Uses;
use crate::files::{FileRules, Reach, Tree};
use crate::kind::ThreadKind;
use crate::report::{Part, host_offers};
use crate::{filter, kernel, trap};

/// The capabilities with which a file server acts for the owners of all files, if it has them: CHOWN,
/// DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, MKNOD and SETFCAP.
const FILE_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 27 | 1 << 31;
/// NET_BIND_SERVICE and NET_RAW, for ports below 1024 and echo requests.
const NETWORK_CAPABILITIES: u64 = 1 << 10 | 1 << 13;

/// IPC_LOCK, for memory that counts as locked wherever it is mapped.
const LOCK_CAPABILITY: u64 = 1 << 14;

/// How much of the confinement is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confine {
    /// What the host offers.
    Auto,
    /// All of it, or no machine.
    Strict,
}

/// What the policy depends on.
pub struct Setup {
    /// How much is asked for.
    pub confine: Confine,
    /// The directories that are served to the guest.
    pub trees: Vec<Tree>,
    /// Whether the process starts a program of the host while the machine exists.
    pub has_program: bool,
    /// The socket of the process that makes others for the vCPU's thread, if programs of the guest can
    /// run natively.
    pub launcher: Option<RawFd>,
    /// Whether guest memory is secret: all mappings of it count as locked, and the vCPU's thread makes
    /// some.
    pub locks_memory: bool,
    /// The exit code of a process that is ended because a thread did what it may not do.
    pub exit_code: u8,
}

/// The policy of this process.
pub(crate) struct Policy {
    uses: Uses,
    locks_memory: bool,
    confine: Confine,
    filters: [OnceLock<Option<BpfProgram>>; ThreadKind::ALL.len()],
    files: Option<FileRules>,
    counts: [AtomicUsize; ThreadKind::ALL.len()],
    missing: [AtomicBool; Part::ALL.len()],
}

static POLICY: OnceLock<Policy> = OnceLock::new();

/// The policy, if there is one.
pub(crate) fn current() -> Option<&'static Policy> {
    POLICY.get()
}

/// Sets the policy: threads that call [`enter`] from now on are confined. A second call has no
/// effect.
///
/// # Errors
/// All of the confinement was asked for, and the host lacks a part: one line names it.
pub fn begin(setup: Setup) -> Result<(), String> {
    let lacks = |part| match setup.confine {
        Confine::Auto => Ok(()),
        Confine::Strict => Err(strict_line(part)),
    };
    let filters = host_offers(Part::SystemCalls) && trap::install(setup.exit_code).is_ok();
    if !filters {
        lacks(Part::SystemCalls)?;
    }
    let files = match host_offers(Part::Files) {
        true => FileRules::new(&setup.trees).ok(),
        false => None,
    };
    if files.is_none() {
        lacks(Part::Files)?;
    }
    kernel::no_core_file();
    kernel::settle_pools();
    let uses = Uses {
        shares: !setup.trees.is_empty(),
        programs: setup.has_program,
        launcher: setup.launcher,
    };
    let missing = Part::ALL.map(|part| {
        AtomicBool::new(match part {
            Part::SystemCalls => !filters,
            Part::Files => files.is_none(),
            Part::Privileges => false,
        })
    });
    let _ = POLICY.set(Policy {
        uses,
        locks_memory: setup.locks_memory,
        confine: setup.confine,
        filters: Default::default(),
        files,
        counts: Default::default(),
        missing,
    });
    Ok(())
}

fn strict_line(part: Part) -> String {
    format!(
        "--confine strict: this host lacks {}; --confine auto does without",
        part.name()
    )
}

/// Confines the calling thread as its kind demands, for good, if the process has a policy.
pub fn enter(kind: ThreadKind) {
    if let Some(policy) = current() {
        policy.count_one(kind);
        policy.enter(kind);
    }
}

/// How a new thread is confined, known to the thread that starts it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    kind: ThreadKind,
    /// Whether the starting thread's confinement, which the new one has from its start, is as narrow.
    is_inherited: bool,
}

/// The entry of a thread that the calling thread is about to start.
pub fn entry_of_child(kind: ThreadKind) -> Entry {
    let is_inherited = match trap::kind() {
        None => false,
        Some(ThreadKind::Main) => kind == ThreadKind::Main,
        Some(_) => true,
    };
    Entry { kind, is_inherited }
}

/// Calls `start`, which starts several threads of a kind, on a thread of that kind, so that they have
/// its confinement from their first moment: the kernel takes longest to install a filter. They still
/// call [`Entry::enter`].
///
/// # Errors
/// The host starts no thread.
pub fn start_confined<R: Send>(
    kind: ThreadKind,
    start: impl FnOnce() -> io::Result<R> + Send,
) -> io::Result<R> {
    let Some(policy) = current() else {
        return start();
    };
    std::thread::scope(|scope| {
        let starter = Builder::new().spawn_scoped(scope, || {
            policy.enter(kind);
            start()
        })?;
        let refused = |_| io::Error::other("the thread that starts others panicked");
        starter.join().map_err(refused)?
    })
}

impl Entry {
    /// Confines the calling thread, as [`enter`] does.
    pub fn enter(self) {
        match self.is_inherited {
            true => {
                trap::set_kind(self.kind);
                if let Some(policy) = current() {
                    policy.count_one(self.kind);
                }
            }
            false => enter(self.kind),
        }
    }
}

impl Policy {
    fn enter(&self, kind: ThreadKind) {
        trap::set_kind(kind);
        if kernel::no_new_privileges().is_err() || self.drop_capabilities(kind).is_err() {
            self.lacks(Part::Privileges);
        }
        if let (Some(files), Some(reach)) = (&self.files, reach(kind))
            && !matches!(files.enforce(reach), Ok(true))
        {
            self.lacks(Part::Files);
        }
        if !self.is_missing(Part::SystemCalls) && !self.filter(kind) {
            self.lacks(Part::SystemCalls);
        }
    }

    fn drop_capabilities(&self, kind: ThreadKind) -> io::Result<()> {
        let kept = match kind {
            ThreadKind::Share => FILE_CAPABILITIES,
            ThreadKind::Vcpu if self.uses.shares => FILE_CAPABILITIES,
            ThreadKind::Network | ThreadKind::Vsock => NETWORK_CAPABILITIES,
            // They open files for the user, who may be root, and start the threads above.
            ThreadKind::Main => return Ok(()),
            _ => 0,
        };
        let lock = match kind {
            ThreadKind::Vcpu if self.locks_memory => LOCK_CAPABILITY,
            _ => 0,
        };
        kernel::keep_capabilities(kept | lock)
    }

    fn filter(&self, kind: ThreadKind) -> bool {
        let make = || filter::filter(kind, self.uses).ok();
        let program = self.filters[kind.index()].get_or_init(make);
        let install = |program: &BpfProgram| kernel::install_filter(program).is_ok();
        program.as_ref().is_some_and(install)
    }

    /// Notes that a part is not enforced on a thread. If all of them were asked for, the process ends.
    fn lacks(&self, part: Part) {
        self.missing[part as usize].store(true, Ordering::Relaxed);
        if self.confine == Confine::Strict {
            eprintln!("tollgate: {}", strict_line(part));
            std::process::exit(1);
        }
    }

    fn count_one(&self, kind: ThreadKind) {
        self.counts[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_missing(&self, part: Part) -> bool {
        self.missing[part as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, kind: ThreadKind) -> usize {
        self.counts[kind.index()].load(Ordering::Relaxed)
    }
}

/// What files threads of a kind may open; `None` if there is no rule for that.
const fn reach(kind: ThreadKind) -> Option<Reach> {
    match kind {
        ThreadKind::Share | ThreadKind::Vcpu => Some(Reach::Trees),
        ThreadKind::Network => Some(Reach::Resolver),
        // They make no system call that opens a file; one rule more costs each start.
        ThreadKind::Disk | ThreadKind::Worker => None,
        ThreadKind::Vsock | ThreadKind::Ports | ThreadKind::Vnc => Some(Reach::Nothing),
        // They open what control clients name.
        ThreadKind::Main => None,
    }
}
