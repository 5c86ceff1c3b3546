//! The hand-over between two processes that share a page: a word each, FUTEX_WAIT and FUTEX_WAKE.

use crate::{Processors, bind, print, time};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two words, each in a line of the cache of its own.
#[repr(C, align(64))]
struct Word(AtomicU32);

fn wait(word: &AtomicU32, old: u32, spins: u32) {
    for _ in 0..spins {
        if word.load(Ordering::SeqCst) != old {
            return;
        }
        std::hint::spin_loop();
    }
    while word.load(Ordering::SeqCst) == old {
        // SAFETY: the word lives; no time limit is given.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                old,
                0usize,
            )
        };
    }
}

fn give(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    // SAFETY: the word lives.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

pub fn measure(processors: Processors, spins: u32, name: &str, rounds: usize) {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a page, zero, shared with the child that is made below.
    let words = unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        &*page.cast::<[Word; 2]>()
    };
    let [there, back] = words;
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        bind(usize::from(processors == Processors::Two));
        let mut turn = 0;
        loop {
            wait(&there.0, turn, spins);
            turn += 1;
            give(&back.0, turn);
        }
    }
    let mut turn = 0;
    let times = time(rounds, || {
        give(&there.0, turn + 1);
        wait(&back.0, turn, spins);
        turn += 1;
    });
    // SAFETY: the child is ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    print(
        &format!("futex there and back, two processes, {name}"),
        times,
    );
}
