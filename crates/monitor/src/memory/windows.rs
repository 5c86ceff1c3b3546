//! Fills shadow windows: maps in the host's page tables what the guest's page tables lead to.

use crate::memory::addresses::view_of;
use crate::memory::guest_view::GuestView;
use crate::memory::translations::Voided;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_memory::{GuestMemory, PageUse};
use tollgate_tlb::long_tlb::part_of_linear;
use tollgate_tlb::shadow_windows::anchors::is_common;
use tollgate_tlb::shadow_windows::{narrow, native, page_of};
use tollgate_tlb::{KnownPage, Run};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{
    AccessKind, Keeping, PageTableMemory, PagingRegisters, Privilege, Translation,
};
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress};

/// The number of pages, aligned, in which the neighbours of a faulting page are mapped with it, if
/// they were accessed before.
const TOGETHER: u64 = 16;
/// Bytes that are mapped together around a faulting page, if the guest's page is large.
const LARGE_PAGE: u64 = 2 << 20;
/// The page at 4 GiB is in no window. 32-bit code accesses memory through the same window as 64-bit
/// code, and its accesses at FFFF_FFFFh continue at address 0. So such an access must fault, and
/// the monitor makes it.
const PAGE_AT_4_GIB: u64 = (4 << 30) / PAGE_SIZE;
/// The most runs that are mapped when a space gets its windows.
const MOST_AT_ONCE: usize = 8192;

/// Runs that are mapped, or pages that are compared, between two checkpoints.
const BETWEEN_CHECKPOINTS: usize = 8;

/// Neighbours that are looked for between two checkpoints. Each takes a walk of the guest's tables.
const NEIGHBOURS_BETWEEN_CHECKPOINTS: u64 = 4;

/// Pages of a large page that are examined between two checkpoints.
const PAGES_BETWEEN_CHECKPOINTS: u64 = 64;

/// The most pieces of a large page that are mapped one by one.
const MOST_PIECES: usize = 64;

/// An access to a page that a window may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageAccess {
    pub(crate) linear: LinearAddress,
    pub(crate) kind: AccessKind,
    pub(crate) of: WindowsOf,
}

/// The result of mapping a page and its neighbours.
pub(crate) struct Filled {
    /// Whether the access finds its page in the window now.
    pub(crate) found: bool,
    /// If the work has stopped, the first neighbour for which nothing has been done.
    pub(crate) next: u64,
}

/// Adds a page to runs in ascending order.
pub(super) fn push(runs: &mut Vec<Run>, page: Run) {
    match runs.last_mut() {
        Some(last) if last.goes_on_with(&page) => last.count += 1,
        _ => runs.push(page),
    }
}

/// Adds a range of pages, from `first` up to but not including `end`, to ranges in ascending order.
fn drop_from(gone: &mut Vec<(u64, u64)>, first: u64, end: u64) {
    match gone.last_mut() {
        Some((_, before)) if *before == first => *before = end,
        _ => gone.push((first, end)),
    }
}

/// Whose accesses windows serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WindowsOf {
    /// Translated code with these rights.
    Translated(Privilege),
    /// Programs that run natively.
    Native,
}

impl WindowsOf {
    /// With whose rights the page tables are walked.
    fn privilege(self) -> Privilege {
        match self {
            Self::Translated(privilege) => privilege,
            Self::Native => Privilege::User,
        }
    }

    /// The address that these windows use for an address.
    fn named(self, state: &CpuState, linear: LinearAddress) -> LinearAddress {
        match self {
            Self::Native => native::named(linear),
            Self::Translated(_) if state.is_long_mode() => linear,
            Self::Translated(privilege) => narrow::named(view_of(privilege), linear),
        }
    }
}

/// The linear address of a page that is numbered as in windows.
pub(super) fn address_of(page: u64) -> LinearAddress {
    LinearAddress(page_of(page).unwrap_or(page) * PAGE_SIZE)
}

/// The progress of comparing a window that was put aside with the guest's tables.
#[derive(Default)]
pub(crate) struct Comparing {
    /// The window that is compared, and the stamp of the derived data when the comparison began.
    of: Option<(LinearAddress, WindowsOf, Voided)>,
    runs: Vec<Run>,
    /// Index of the run that is being compared, and the next page in that run.
    run: usize,
    page: u64,
    /// Pages that lead elsewhere now, as ranges without their end.
    gone: Vec<(u64, u64)>,
    agreed: u64,
    looked_at: u64,
}

impl Comparing {
    /// Whether the comparison can resume where it stopped: nothing that was confirmed has been
    /// invalidated since, and the window has not changed.
    pub(crate) fn goes_on(&self, view: &GuestView, linear: LinearAddress, of: WindowsOf) -> bool {
        let now = (linear, of, view.translations.voided());
        self.of.is_some_and(|of| of == now)
    }

    /// Forgets the progress, so that the next comparison begins from the start.
    pub(crate) fn forget(&mut self) {
        self.of = None;
        self.runs.clear();
        self.gone.clear();
        (self.run, self.page, self.agreed, self.looked_at) = (0, 0, 0, 0);
    }
}

/// Guest memory that a walk only reads.
struct ReadOnly<'a> {
    memory: &'a mut GuestMemory,
    /// Whether the walk would have set a bit.
    wanted: bool,
}

impl PageTableMemory for ReadOnly<'_> {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.memory.read_u32(address)
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.memory.read_u64(address)
    }

    fn set_bits(&mut self, _address: PhysicalAddress, _bits: u32) {
        self.wanted = true;
    }
}

impl GuestView {
    /// The translation of an address that was accessed before, if such an access is allowed and a
    /// window can serve it. Sets no bit in any table.
    pub(crate) fn accessed(
        &mut self,
        state: &CpuState,
        (linear, kind): (LinearAddress, AccessKind),
        of: WindowsOf,
    ) -> Option<Translation> {
        let privilege = of.privilege();
        let mut memory = ReadOnly {
            memory: &mut self.memory,
            wanted: false,
        };
        let registers = PagingRegisters::of(state);
        let walk = registers.walk(&mut memory, linear, kind, privilege);
        let found = walk.ok().filter(|_| !memory.wanted)?;
        let named = of.named(state, linear);
        let is_lower = named.0 >> 63 == 0;
        // A global page in a window of one space would have to be found by INVLPG in all other
        // spaces.
        let has_window = match privilege {
            Privilege::User => is_lower && !found.global,
            Privilege::Supervisor | Privilege::System => !is_lower && found.global,
        };
        let is_kept = found.keeping != Keeping::Never && !self.is_watched(linear, 1);
        (has_window && is_kept).then_some(found)
    }

    /// Whether the window of an address is put aside.
    pub(crate) fn is_window_aside(
        &self,
        state: &CpuState,
        linear: LinearAddress,
        privilege: Privilege,
    ) -> bool {
        let named = WindowsOf::Translated(privilege).named(state, linear);
        self.translations.is_window_aside(named)
    }

    /// Whether a page is plain RAM, be it in a snapshot's file.
    fn is_plain(&self, physical_page: u64) -> bool {
        let page_use = self.memory.ram().page_use(physical_page);
        matches!(page_use, PageUse::Ram | PageUse::Saved)
    }

    /// Whether a page is plain RAM that windows with this name for it can have. The processes that
    /// run programs natively do not have the files of snapshots.
    pub(super) fn has_file(&self, physical_page: u64, named: LinearAddress) -> bool {
        match native::page_of(named.page()) {
            Some(page) => {
                self.memory.ram().page_use(physical_page) == PageUse::Ram
                    && (self.translations).program_has(LinearAddress(page * PAGE_SIZE))
            }
            None => self.is_plain(physical_page),
        }
    }

    /// Whether the monitor need not see stores to a page of RAM: the page holds no code, and is not
    /// in a snapshot's file.
    fn needs_no_watch(&self, physical_page: u64) -> bool {
        let code = self.memory.code();
        self.memory.ram().page_use(physical_page) == PageUse::Ram
            && !code.page_has_code(physical_page)
            && !code.is_watched(physical_page)
    }

    /// A page as a window may have it. `named` is the address that windows use for an address in
    /// the page, and `translation` is the translation of the latter.
    pub(super) fn page(&self, named: LinearAddress, translation: &Translation) -> Option<Run> {
        let physical = translation.physical.page();
        let has_place = named.page() != PAGE_AT_4_GIB && self.has_file(physical, named);
        has_place.then(|| Run {
            page: named.page(),
            count: 1,
            physical,
            writable: translation.writable_now && self.needs_no_watch(physical),
            executable: false,
        })
    }

    /// After an access that was allowed, maps the page of an address of the loaded space in its
    /// window, together with all its neighbours or those from `from` on. If it `stops`, neighbours
    /// are left out.
    pub(crate) fn fill_window(
        &mut self,
        state: &CpuState,
        access: PageAccess,
        from: Option<u64>,
        stops: impl Fn(InterruptibleWork) -> bool,
    ) -> Filled {
        let PageAccess { linear, kind, of } = access;
        let nothing = Filled {
            found: false,
            next: 0,
        };
        let Some(translation) = self.accessed(state, (linear, AccessKind::Read), of) else {
            return nothing;
        };
        let named = of.named(state, linear);
        if kind == AccessKind::Write || of == WindowsOf::Native {
            self.memory.take_own(translation.physical.page());
            self.follow_moved();
        }
        let Some(page) = self.page(named, &translation) else {
            return nothing;
        };
        if kind == AccessKind::Write && !page.writable {
            return nothing;
        }
        let mut walks = vec![(linear, translation)];
        let is_large = translation.page_size >= LARGE_PAGE
            && !self.is_watched(LinearAddress(linear.0 & !(LARGE_PAGE - 1)), LARGE_PAGE);
        let large = match is_large {
            // This work cannot resume in the middle: the second time all of the large page is
            // examined.
            true => self.large_page(&page, translation.writable_now, |work| {
                from.is_none() && stops(work)
            }),
            false => Some(Vec::new()),
        };
        let (mut runs, mut next) = match large {
            None => (vec![page], 0),
            Some(runs) if !runs.is_empty() => (runs, 0),
            Some(_) => {
                let from = from.unwrap_or(0);
                self.with_neighbours(state, page, of, from, &mut walks, &stops)
            }
        };
        // The run that the access needs is mapped first. Once it is mapped, the others are
        // optional.
        let holds = |run: &Run| run.page <= page.page && page.page < run.end();
        runs.sort_by_key(|run| !holds(run));
        let mut found = false;
        let mut runs = runs.into_iter();
        while let Some(run) = runs.next() {
            if self.is_mapped(&run) {
                // This run was mapped before the work stopped.
                found |= holds(&run);
                continue;
            }
            found |= self.map_run(run) && holds(&run);
            if stops(InterruptibleWork::MapWindow) {
                if let Some(left) = runs.next() {
                    next = left.page % TOGETHER;
                }
                break;
            }
        }
        for (linear, walk) in walks {
            let translations = &mut self.translations;
            translations.note_window(of.named(state, linear), walk.page_size);
            let view = view_of(of.privilege());
            translations.note_for_window(view, linear, &walk, walk.writable_now);
        }
        self.confirm(state);
        Filled { found, next }
    }

    /// Collects a page and its neighbours from `from` on, as far as they are known to be accessible
    /// and are not mapped. Returns how far it looked: to some of the neighbours, or past the last
    /// one unless it `stops`. Adds the walks that led to the neighbours to `walks`.
    fn with_neighbours(
        &mut self,
        state: &CpuState,
        page: Run,
        of: WindowsOf,
        from: u64,
        walks: &mut Vec<(LinearAddress, Translation)>,
        stops: impl Fn(InterruptibleWork) -> bool,
    ) -> (Vec<Run>, u64) {
        let first = page.page & !(TOGETHER - 1);
        let mut runs: Vec<Run> = Vec::new();
        let mut next = from;
        while next < TOGETHER {
            let at = first + next;
            let neighbour = if at == page.page {
                Some(page)
            } else {
                let (address, named) = (address_of(at), LinearAddress(at * PAGE_SIZE));
                let is_mapped = self.translations.window_run(named).is_some();
                (!is_mapped)
                    .then(|| self.accessed(state, (address, AccessKind::Read), of))
                    .flatten()
                    .and_then(|translation| {
                        walks.push((address, translation));
                        self.page(named, &translation)
                    })
            };
            if let Some(neighbour) = neighbour {
                push(&mut runs, neighbour);
            }
            next += 1;
            if (next - from).is_multiple_of(NEIGHBOURS_BETWEEN_CHECKPOINTS)
                && next < TOGETHER
                && stops(InterruptibleWork::MapWindow)
            {
                break;
            }
        }
        if !(from..next).contains(&(page.page - first)) {
            runs.push(page);
        }
        (runs, next)
    }

    /// All of the 2 MiB around a page that is in a large page; pages that hold code are for loads
    /// only. Empty if that takes too many pieces or not all of it is RAM, and `None` if the work
    /// `stops`.
    fn large_page(
        &self,
        page: &Run,
        writable: bool,
        stops: impl Fn(InterruptibleWork) -> bool,
    ) -> Option<Vec<Run>> {
        let pages = LARGE_PAGE / PAGE_SIZE;
        let before = page.page % pages;
        let Some(physical) = page.physical.checked_sub(before) else {
            return Some(Vec::new());
        };
        let mut runs: Vec<Run> = Vec::new();
        for at in 0..pages {
            let named = LinearAddress((page.page - before + at) * PAGE_SIZE);
            if !self.has_file(physical + at, named) || runs.len() > MOST_PIECES {
                return Some(Vec::new());
            }
            if at != 0
                && at.is_multiple_of(PAGES_BETWEEN_CHECKPOINTS)
                && stops(InterruptibleWork::MapWindow)
            {
                return None;
            }
            if page.page - before + at == PAGE_AT_4_GIB {
                continue;
            }
            push(
                &mut runs,
                Run {
                    page: page.page - before + at,
                    count: 1,
                    physical: physical + at,
                    writable: writable && self.needs_no_watch(physical + at),
                    executable: false,
                },
            );
        }
        Some(runs)
    }

    /// Whether a run is already mapped with these rights.
    fn is_mapped(&self, run: &Run) -> bool {
        let mapped = (self.translations).window_run(LinearAddress(run.page * PAGE_SIZE));
        mapped.is_some_and(|mapped| {
            mapped.physical + (run.page - mapped.page) == run.physical
                && mapped.writable == run.writable
                && mapped.executable == run.executable
                && mapped.end() >= run.end()
        })
    }

    /// Maps a run, in as many pieces as it has in files: some of its pages may be in a snapshot's.
    pub(super) fn map_run(&mut self, run: Run) -> bool {
        let ram = self.memory.ram();
        let mut done = 0;
        while done < run.count {
            let physical = run.physical + done;
            let Some(source) = ram.source(physical, run.count - done) else {
                return false;
            };
            let piece = Run {
                page: run.page + done,
                count: source.pages,
                physical,
                ..run
            };
            let mapped = (self.translations).map_window(piece, source.file, source.offset);
            if !mapped {
                return false;
            }
            done += source.pages;
        }
        true
    }

    /// Takes back the window of an address that was put aside, as far as the guest's tables still
    /// lead to the pages it has. Returns `Some(false)` if most pages lead elsewhere, as if the
    /// window belonged to another space; the window is then emptied. Returns `None` if the work
    /// `stops` before the result is known: then nothing has changed, and `comparing` holds the
    /// progress.
    pub(crate) fn take_window_back(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        of: WindowsOf,
        comparing: &mut Comparing,
        stops: impl Fn(InterruptibleWork) -> bool,
    ) -> Option<bool> {
        let named = of.named(state, linear);
        if !comparing.goes_on(self, linear, of) {
            comparing.forget();
            comparing.of = Some((linear, of, self.translations.voided()));
            comparing.runs = self.translations.runs_aside(named);
        }
        let Comparing {
            gone,
            agreed,
            looked_at,
            ..
        } = comparing;
        while let Some(&run) = comparing.runs.get(comparing.run) {
            let mut page = comparing.page.max(run.page);
            while page < run.end() {
                *looked_at += 1;
                if *looked_at % BETWEEN_CHECKPOINTS as u64 == 0
                    && stops(InterruptibleWork::CompareWindow)
                {
                    comparing.page = page;
                    self.confirm(state);
                    return None;
                }
                let address = address_of(page);
                let now = self
                    .accessed(state, (address, AccessKind::Read), of)
                    .filter(|_| {
                        let fetch = (address, AccessKind::Fetch);
                        !run.executable || self.accessed(state, fetch, of).is_some()
                    });
                let Some(now) = now else {
                    drop_from(gone, page, page + 1);
                    page += 1;
                    continue;
                };
                // One walk covers the run up to the end of the guest's page, which may be large.
                let pages = now.page_size / PAGE_SIZE;
                let end = run.end().min(page + pages - page % pages);
                let is_same = now.physical.page() == run.physical + (page - run.page)
                    && (now.writable_now || !run.writable);
                if is_same {
                    let translations = &mut self.translations;
                    translations.note_window(of.named(state, address), now.page_size);
                    let view = view_of(of.privilege());
                    translations.note_for_window(view, address, &now, run.writable);
                    *agreed += 1;
                } else {
                    drop_from(gone, page, end);
                }
                page = end;
            }
            comparing.run += 1;
            comparing.page = 0;
        }
        self.confirm(state);
        let is_same_space = *agreed * 2 >= *looked_at;
        if is_same_space || of.privilege() == Privilege::Supervisor {
            self.translations.take_window_back(named, gone);
        } else {
            self.translations.empty_windows();
        }
        comparing.forget();
        Some(is_same_space)
    }

    /// Whether the programs of the loaded space use pages in the parts that an anchor leads to, and
    /// none below, where programs lie that are linked for fixed addresses. The software TLB of
    /// IA-32e mode decides.
    pub(crate) fn uses_common_parts(&self) -> bool {
        let pages = self
            .translations
            .known_pages(view_of(Privilege::User), true);
        let part = |page: u64| part_of_linear((page * PAGE_SIZE) as i64);
        pages.iter().all(|known| part(known.page) != 0)
            && pages.iter().any(|known| is_common(part(known.page)))
    }

    /// Maps all pages that a program's accesses find in the software TLB and that are not mapped
    /// yet. `is_long` selects the software TLB of IA-32e mode. Returns false if the work `stops`
    /// before the end, having mapped some of the pages.
    pub(crate) fn fill_windows(
        &mut self,
        is_long: bool,
        stops: impl Fn(InterruptibleWork) -> bool,
    ) -> bool {
        let ram = self.memory.ram();
        let (base, span) = (ram.base() as u64, ram.span());
        let mut runs: Vec<Run> = Vec::new();
        let view = view_of(Privilege::User);
        for known in self.translations.known_pages(view, is_long) {
            let KnownPage {
                page,
                host,
                writable,
            } = known;
            let physical = host.wrapping_sub(base);
            let is_out = physical >= span || page == PAGE_AT_4_GIB;
            if is_out || !self.is_plain(physical / PAGE_SIZE) {
                continue;
            }
            let address = LinearAddress(page * PAGE_SIZE);
            if self.translations.window_run(address).is_some() {
                continue;
            }
            let next = Run {
                page,
                count: 1,
                physical: physical / PAGE_SIZE,
                writable: writable && self.needs_no_watch(physical / PAGE_SIZE),
                executable: false,
            };
            push(&mut runs, next);
        }
        for (number, run) in (1..).zip(runs.into_iter().take(MOST_AT_ONCE)) {
            self.map_run(run);
            if number % BETWEEN_CHECKPOINTS == 0 && stops(InterruptibleWork::FillWindows) {
                return false;
            }
        }
        true
    }
}
