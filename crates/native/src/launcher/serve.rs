//! The launcher's own process: what it gives up first, and its requests.

use super::message::{Received, Reply, Request, receive, send};
use crate::children::Children;
use crate::host;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Serves requests in a process that was just forked, until its monitor ends.
pub fn serve(socket: &OwnedFd, monitor: u32, confine: impl FnOnce() -> io::Result<()>) -> ! {
    // The process is a copy of its monitor, and must not continue as such.
    let served = catch_unwind(AssertUnwindSafe(|| {
        let socket = host::become_server(socket.as_fd(), monitor)?;
        confine()?;
        answer_all(socket)
    }));
    host::end(match served {
        Ok(Ok(())) => 0,
        _ => 1,
    })
}

fn answer_all(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut children = Children::default();
    while let Some(received) = receive(socket)? {
        answer(socket, &mut children, &received)?;
    }
    Ok(())
}

/// Does what was asked for, and replies.
fn answer(socket: BorrowedFd<'_>, children: &mut Children, received: &Received) -> io::Result<()> {
    let reply =
        |reply: Reply, descriptors: &[BorrowedFd<'_>]| send(socket, &reply.words(), descriptors);
    let refused = |error: io::Error| Reply::Refused(error.raw_os_error().unwrap_or(libc::EINVAL));
    let request = received.words.as_ref().and_then(Request::parse);
    match (request, received.descriptors.as_slice()) {
        (Some(Request::Hello), []) => reply(Reply::Done, &[]),
        (Some(Request::Make(settings)), [ram]) => match children.make(ram.as_fd(), &settings) {
            Ok(made) => {
                let descriptors = [&made.child.descriptor, &made.shared, &made.results];
                let descriptors = descriptors.map(AsFd::as_fd);
                let sent = reply(Reply::Made(made.child.number), &descriptors);
                children.keep(made.child);
                sent
            }
            Err(error) => reply(refused(error), &[]),
        },
        (Some(Request::Prepare(settings)), [ram]) => {
            children.prepare(ram.as_fd(), &settings);
            Ok(())
        }
        (Some(Request::Death(number)), []) => match children.death(number) {
            Some(death) => reply(Reply::Dead(death), &[]),
            None => reply(Reply::Refused(libc::ECHILD), &[]),
        },
        (Some(Request::End(number)), []) => {
            children.end(number);
            Ok(())
        }
        (Some(Request::Bind { tasks, processor }), []) => {
            children.bind(tasks, processor);
            Ok(())
        }
        _ => reply(Reply::Refused(libc::EINVAL), &[]),
    }
}
