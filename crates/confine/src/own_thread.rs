//! A thread that runs the machine, and what it asks the thread that started it to do.
//!
//! The vCPU's thread may open nothing. A few commands need files all the same: a snapshot is written
//! to a path that a control client names, a disc is changed for another one. Such an *errand* is a
//! function that runs on the thread that started the vCPU's, while the vCPU's waits for it.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use crate::kind::ThreadKind;
use crate::policy;

/// The size of the stack: as much as a first thread usually has.
const STACK: usize = 8 << 20;

/// Work of another thread, which waits until it is done.
struct Errand {
    work: Box<dyn FnOnce() + Send>,
    done: Sender<()>,
}

thread_local! {
    /// Leads to the thread that does errands for the calling one.
    static ERRANDS: RefCell<Option<Sender<Errand>>> = const { RefCell::new(None) };
}

/// A value that goes to another thread and comes back before its owner continues.
struct HandedOver<T>(T);

// SAFETY: the only values of this type are those that `on_own_thread` and `elsewhere` make. Both wait
// until the other thread is done with the value and touch nothing until then, so it is used by one
// thread at a time, and a channel or a join lies between two uses.
unsafe impl<T> Send for HandedOver<T> {}

impl<T> HandedOver<T> {
    /// Takes the whole wrapper into a closure, rather than its field.
    fn take(self) -> T {
        self.0
    }
}

/// Runs `work` on a thread of its own, which is of `kind`, and does its errands until it ends.
/// Returns what `work` returns, or what it panicked with.
///
/// # Errors
/// The host starts no thread.
///
/// # Safety
/// What `work` uses must not depend on the thread that uses it: no value of a thread-local, no guard
/// of a lock that the calling thread holds.
pub unsafe fn on_own_thread<R>(
    kind: ThreadKind,
    work: impl FnOnce() -> R,
) -> io::Result<Result<R, Box<dyn Any + Send>>> {
    let (sender, errands): (Sender<Errand>, Receiver<Errand>) = channel();
    let handed = HandedOver(work);
    std::thread::scope(|scope| {
        let thread = Builder::new()
            .name(kind.name().into())
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                let work = handed.take();
                policy::enter(kind);
                ERRANDS.set(Some(sender));
                let result = catch_unwind(AssertUnwindSafe(work));
                // The other thread does errands until this is dropped.
                ERRANDS.set(None);
                HandedOver(result)
            })?;
        for errand in errands {
            (errand.work)();
            // The thread waits for this.
            let _ = errand.done.send(());
        }
        Ok(match thread.join() {
            Ok(result) => result.take(),
            Err(panic) => Err(panic),
        })
    })
}

/// Runs `work` where files may be opened: on the thread that started the calling one by
/// [`on_own_thread`], or right here if none did.
///
/// # Safety
/// As for [`on_own_thread`].
pub unsafe fn elsewhere<R>(work: impl FnOnce() -> R) -> R {
    let Some(errands) = ERRANDS.with_borrow(Option::clone) else {
        return work();
    };
    let mut result = None;
    let (done, is_done) = channel();
    {
        let slot = HandedOver(&mut result);
        let handed = HandedOver(work);
        let work = move || {
            let (work, slot) = (handed.take(), slot.take());
            *slot = Some(catch_unwind(AssertUnwindSafe(work)));
        };
        let work: Box<dyn FnOnce() + Send + '_> = Box::new(work);
        // SAFETY: the box is used and dropped by the other thread before it reports, or before the
        // channel to this thread breaks, and this function returns only after one of the two.
        let work: Box<dyn FnOnce() + Send> = unsafe { std::mem::transmute(work) };
        if errands.send(Errand { work, done }).is_ok() {
            let _ = is_done.recv();
        }
    }
    match result {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        // The other thread lives as long as this one.
        None => unreachable!("the thread that does errands has ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn errands_are_done_by_the_thread_that_waits() {
        let here = std::thread::current().id();
        let shared = Rc::new(5);
        // SAFETY: nothing here depends on the thread.
        let result = unsafe {
            on_own_thread(ThreadKind::Vcpu, || {
                let own = std::thread::current().id();
                let other = elsewhere(|| (std::thread::current().id(), Rc::clone(&shared)));
                (own, other.0, *other.1)
            })
        };
        let (own, other, value) = result.unwrap().unwrap();
        assert_ne!(own, here);
        assert_eq!(other, here);
        assert_eq!(value, 5);
        // SAFETY: as above.
        assert_eq!(unsafe { elsewhere(|| std::thread::current().id()) }, here);
    }

    #[test]
    fn a_panic_of_an_errand_is_the_threads_own() {
        // SAFETY: nothing here depends on the thread.
        let result = unsafe {
            on_own_thread(ThreadKind::Vcpu, || {
                elsewhere(|| std::panic::panic_any(7));
            })
        };
        let panic = result.unwrap().unwrap_err();
        assert_eq!(panic.downcast_ref::<i32>(), Some(&7));
    }
}
