//! Shadow windows that map a file of this process, whose pages hold their own numbers.

use super::*;
use crate::parts::PART_SHIFT;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use tollgate_test_support::skip;

/// The end of the first part of the addresses.
const PART_END: u64 = 1 << PART_SHIFT;
/// Number of pages in the file.
const PAGES: u64 = 64;

/// A file whose page `n` begins with the number `n`.
fn file() -> File {
    // SAFETY: the name is a terminated string, and the descriptor is new.
    let file = unsafe {
        let descriptor = libc::memfd_create(c"test-ram".as_ptr(), libc::MFD_CLOEXEC);
        assert!(descriptor >= 0);
        File::from_raw_fd(descriptor)
    };
    for page in 0..PAGES {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; PAGE_SIZE as usize];
        bytes[..8].copy_from_slice(&page.to_le_bytes());
        file.write_all_at(&bytes, page * PAGE_SIZE).unwrap();
    }
    file
}

struct Test {
    windows: ShadowWindows,
    file: File,
}

impl Test {
    /// `None` means that this process has no room for windows.
    fn new() -> Option<Self> {
        let windows = ShadowWindows::new();
        if windows.is_none() {
            skip::impossible("something is mapped where windows would be");
        }
        Some(Self {
            windows: windows?,
            file: file(),
        })
    }

    fn map(&mut self, linear: u64, count: u64, physical: u64, writable: bool) {
        let run = Run {
            page: linear / PAGE_SIZE,
            count,
            physical,
            writable,
            executable: false,
        };
        let result = self
            .windows
            .map(run, self.file.as_fd(), physical * PAGE_SIZE);
        result.unwrap();
    }

    /// The number of the page of the file that translated code would find at a linear address.
    fn read(&self, linear: u64) -> Option<u64> {
        let part = (linear as i64) >> PART_SHIFT;
        let host = self.windows.delta(part).wrapping_add(linear);
        let mut value = 0_u64;
        let local = libc::iovec {
            iov_base: (&raw mut value).cast(),
            iov_len: 8,
        };
        let remote = libc::iovec {
            iov_base: host as *mut _,
            iov_len: 8,
        };
        // SAFETY: copies 8 bytes of this process to `value`, or fails where nothing is mapped.
        let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        (count == 8).then_some(value)
    }

    /// Whether a store at a linear address would succeed.
    fn is_writable(&self, linear: u64) -> bool {
        let part = (linear as i64) >> PART_SHIFT;
        let host = self.windows.delta(part).wrapping_add(linear);
        let mut value = self.read(linear).unwrap_or_default();
        let local = libc::iovec {
            iov_base: (&raw mut value).cast(),
            iov_len: 8,
        };
        let remote = libc::iovec {
            iov_base: host as *mut _,
            iov_len: 8,
        };
        // SAFETY: writes the value that is already there, or fails.
        let count = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        count == 8
    }
}

const LOW: u64 = 0x7f12_3456_7000;
const HIGH: u64 = 0xffff_8880_0010_0000;

#[test]
fn pages_are_found_where_they_are_mapped_and_nowhere_else() {
    let Some(mut test) = Test::new() else { return };
    assert_eq!(test.read(LOW), None);
    test.map(LOW, 3, 5, true);
    test.map(HIGH, 1, 9, false);
    let pages = [0, 1, 2, 3].map(|page| test.read(LOW + page * PAGE_SIZE));
    assert_eq!(pages, [Some(5), Some(6), Some(7), None]);
    assert_eq!(test.read(LOW - PAGE_SIZE), None);
    assert_eq!(test.read(HIGH), Some(9));
    assert!(test.is_writable(LOW) && !test.is_writable(HIGH));
    // This page replaces the one that is mapped there.
    test.map(LOW + PAGE_SIZE, 1, 20, false);
    let pages = [0, 1, 2].map(|page| test.read(LOW + page * PAGE_SIZE));
    assert_eq!(pages, [Some(5), Some(20), Some(7)]);
    assert!(!test.is_writable(LOW + PAGE_SIZE) && test.is_writable(LOW));
}

#[test]
fn what_is_dropped_is_gone() {
    let Some(mut test) = Test::new() else { return };
    test.map(LOW, 8, 1, true);
    let pages = PageRange {
        first: LOW / PAGE_SIZE + 2,
        last: LOW / PAGE_SIZE + 4,
    };
    test.windows.drop_pages(pages);
    let found: Vec<bool> = (0..8)
        .map(|page| test.read(LOW + page * PAGE_SIZE).is_some())
        .collect();
    assert_eq!(found, [true, true, false, false, false, true, true, true]);
    test.windows.empty_loaded();
    assert_eq!((test.read(LOW), test.windows.mappings()), (None, 0));
}

#[test]
fn invalidating_a_page_of_a_large_one_drops_all_of_that() {
    let Some(mut test) = Test::new() else { return };
    let large = LOW & !0x1f_ffff;
    test.map(large + 0x3000, 4, 1, true);
    test.map(large + 0x10_0000, 1, 9, false);
    test.map(large + 0x20_0000, 1, 10, false);
    test.windows.note_large(LinearAddress(large), 0x20_0000);
    test.windows
        .drop_pages(PageRange::of(LinearAddress(large + 0x1f_0000)));
    let found = [0x3000, 0x10_0000, 0x20_0000].map(|at| test.read(large + at));
    assert_eq!(found, [None, None, Some(10)]);
}

#[test]
fn stores_to_a_physical_page_end_in_all_spaces() {
    let Some(mut test) = Test::new() else { return };
    test.map(LOW, 4, 1, true);
    test.map(HIGH, 16, 0, true);
    test.windows.load(SpaceNumber::new(1), false);
    test.map(LOW, 1, 2, true);
    assert!(test.windows.protect(2));
    assert!(!test.windows.protect(2));
    assert!(!test.is_writable(LOW) && test.read(LOW) == Some(2));
    assert!(!test.is_writable(HIGH + 2 * PAGE_SIZE) && test.is_writable(HIGH + PAGE_SIZE));
    test.windows.load(SpaceNumber::new(0), true);
    let writable = [0, 1, 2].map(|page| test.is_writable(LOW + page * PAGE_SIZE));
    assert_eq!(writable, [true, false, true]);
}

#[test]
fn pages_for_loads_can_be_unmapped_wherever_they_are() {
    let Some(mut test) = Test::new() else { return };
    test.map(0x10_0000, 8, 20, false);
    test.map(0x20_0000, 1, 23, true);
    test.windows.load(SpaceNumber::new(1), true);
    test.map(0x30_0000, 2, 22, false);
    test.windows.unmap_loads_from(0, 20);
    assert_eq!(test.read(0x30_0000), Some(22));
    test.windows.unmap_loads_from(22, 24);
    assert_eq!(test.read(0x30_0000), None);
    assert_eq!(test.read(0x30_1000), None);
    test.windows.load(SpaceNumber::new(0), true);
    let read = |page: u64| test.read(0x10_0000 + page * PAGE_SIZE);
    let pages = [0, 1, 2, 3, 4, 7].map(read);
    assert_eq!(pages, [Some(20), Some(21), None, None, Some(24), Some(27)]);
    assert_eq!(test.read(0x20_0000), Some(23), "it was mapped for stores");
}

#[test]
fn spaces_have_windows_of_their_own_and_share_the_upper_half() {
    let Some(mut test) = Test::new() else { return };
    test.map(LOW, 1, 1, true);
    test.map(HIGH, 1, 2, true);
    test.windows.load(SpaceNumber::new(1), false);
    assert_eq!((test.read(LOW), test.read(HIGH)), (None, Some(2)));
    test.map(LOW, 1, 3, true);
    test.windows.load(SpaceNumber::new(0), true);
    assert_eq!(test.read(LOW), Some(1));
    test.windows.load(SpaceNumber::new(1), true);
    assert_eq!(test.read(LOW), Some(3));
}

#[test]
fn what_is_put_aside_faults_until_it_is_taken_back() {
    let Some(mut test) = Test::new() else { return };
    test.map(LOW, 4, 1, true);
    test.map(HIGH, 1, 2, true);
    test.windows.put_aside(false);
    assert_eq!((test.read(LOW), test.read(HIGH)), (None, Some(2)));
    assert!(test.windows.is_aside(LinearAddress(LOW)));
    assert_eq!(test.windows.runs_aside(LinearAddress(LOW)).len(), 1);
    let page = LOW / PAGE_SIZE;
    test.windows
        .take_back(LinearAddress(LOW), &[(page + 1, page + 3)]);
    let found = [0, 1, 2, 3].map(|page| test.read(LOW + page * PAGE_SIZE).is_some());
    assert_eq!(found, [true, false, false, true]);
    test.windows.put_aside(true);
    assert_eq!(test.read(HIGH), None);
    test.windows.take_back(LinearAddress(HIGH), &[]);
    assert_eq!(test.read(HIGH), Some(2));
}

#[test]
fn a_fault_s_address_tells_the_linear_one() {
    let Some(mut test) = Test::new() else { return };
    test.map(LOW, 1, 1, true);
    let near = LinearAddress(LOW);
    let part = (LOW as i64) >> PART_SHIFT;
    let host = test.windows.delta(part).wrapping_add(LOW + 0x5000);
    let page = BesideWindow::Page(LinearAddress(LOW + 0x5000));
    assert_eq!(test.windows.what_is(host, near), page);
    let nothing = ShadowWindows::slide_to_nothing(-1).wrapping_add(u64::MAX - 7);
    let near = LinearAddress(u64::MAX - 15);
    let linear = LinearAddress(u64::MAX - 7);
    assert_eq!(
        test.windows.what_is(nothing, near),
        BesideWindow::Nothing(linear)
    );
    // An access that continues in the next part does not use the window of this part.
    for (near, beyond) in [(u64::MAX - 15, 0x10_u64), (PART_END - 16, PART_END + 8)] {
        let part = (near as i64) >> PART_SHIFT;
        let host = ShadowWindows::slide_to_nothing(part).wrapping_add(beyond);
        let near = LinearAddress(near);
        assert_eq!(test.windows.what_is(host, near), BesideWindow::Between);
    }
    // The address is not near the one that the code knows.
    assert_eq!(
        test.windows.what_is(nothing, LinearAddress(0x1000)),
        BesideWindow::Between
    );
    let next = ((part + 1) << PART_SHIFT) as u64;
    let behind = test.windows.delta(part).wrapping_add(next);
    // With an anchor the window of the next part follows this one directly.
    let expected = match test.windows.anchor() {
        Some(_) => BesideWindow::Page(LinearAddress(next)),
        None => BesideWindow::Between,
    };
    assert_eq!(test.windows.what_is(behind, LinearAddress(LOW)), expected);
    assert_eq!(
        test.windows.what_is(0x1000, LinearAddress(LOW)),
        BesideWindow::No
    );
    // The window of another space says nothing about the loaded space.
    test.windows.load(SpaceNumber::new(2), false);
    assert_eq!(
        test.windows.what_is(host, LinearAddress(LOW)),
        BesideWindow::Between
    );
}

#[test]
fn the_windows_of_common_parts_lie_at_one_anchor() {
    let Some(mut test) = Test::new() else { return };
    // A window that existed before lies elsewhere, and is emptied.
    test.map(LOW, 1, 9, true);
    test.windows.use_anchors(true);
    let Some(anchor) = test.windows.anchor() else {
        skip::impossible("the anchors are another machine's, or something is mapped there");
        return;
    };
    const PROGRAM: u64 = 0x5634_1234_5000;
    assert_eq!(test.read(LOW), None);
    test.map(LOW, 1, 1, true);
    test.map(PROGRAM, 1, 2, true);
    for (linear, page) in [(LOW, 1), (PROGRAM, 2)] {
        assert_eq!(test.windows.delta((linear as i64) >> PART_SHIFT), anchor);
        assert_eq!(test.read(linear), Some(page));
    }
    // Windows of other parts do not lie at the anchor.
    test.map(0x1000, 1, 3, true);
    assert_ne!(test.windows.delta(0), anchor);
    // While one of these windows is put aside, none can be reached.
    test.windows.put_aside(false);
    let aside = test.windows.anchor().unwrap();
    assert_ne!(aside, anchor);
    let host = LOW.wrapping_add(aside);
    let page = BesideWindow::Page(LinearAddress(LOW));
    assert_eq!(test.windows.what_is(host, LinearAddress(0)), page);
    while let Some(linear) = test.windows.common_aside() {
        assert_eq!(test.windows.anchor(), Some(aside));
        test.windows.take_back(linear, &[]);
    }
    assert_eq!(test.windows.anchor(), Some(anchor));
    // Another space has another anchor.
    test.windows.load(SpaceNumber::new(5), false);
    assert_ne!(test.windows.anchor(), Some(anchor));
    assert_eq!(test.read(LOW), None);
}

#[test]
fn runs_that_leave_their_part_are_refused() {
    let Some(mut test) = Test::new() else { return };
    for page in [(1 << 27) - 1, (1 << 35) - 1, 1 << 40] {
        let run = Run {
            page,
            count: 2,
            physical: 0,
            writable: true,
            executable: false,
        };
        assert!(test.windows.map(run, test.file.as_fd(), 0).is_err());
    }
    assert_eq!(test.windows.mappings(), 0);
}
