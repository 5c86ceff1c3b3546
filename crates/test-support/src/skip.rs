//! Tests that cannot run on this host, and how each says so.
//!
//! A test that cannot run calls one of these functions and returns. `cargo test` shows such a test
//! as passed, and shows nothing of what it printed, so two variables of the environment bring the
//! skip to light; `scripts/test` sets both:
//!
//! ```text
//! TOLLGATE_SKIPS=fail       a test fails for want of something that scripts provide ([`missing`])
//! TOLLGATE_SKIP_LOG=FILE    each skip adds the line "test: reason" to this file
//! ```

use std::fs::OpenOptions;
use std::io::Write;

/// Skips a test because something is missing that `scripts/install-dependencies`,
/// `scripts/get-guests` or `scripts/get-system` provides: a guest, a system, a program.
///
/// # Panics
/// `TOLLGATE_SKIPS=fail` is set.
#[track_caller]
pub fn missing(what: &str) {
    assert!(
        std::env::var_os("TOLLGATE_SKIPS").is_none_or(|value| value != "fail"),
        "{what} (scripts/test --allow-skips skips the tests that need it)"
    );
    skip(what);
}

/// Skips a test because the host lacks what it needs or forbids it, or because what it needs is not
/// part of the usual set-up, such as QEMU. Such a skip never fails.
pub fn impossible(why: &str) {
    skip(why);
}

fn skip(why: &str) {
    eprintln!("skipped: {why}");
    let Some(log) = std::env::var_os("TOLLGATE_SKIP_LOG") else {
        return;
    };
    let thread = std::thread::current();
    let line = line(thread.name(), why);
    let file = OpenOptions::new().append(true).create(true).open(&log);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    // A skip that leaves no trace is what the log is there to prevent.
    written.unwrap_or_else(|error| panic!("{}: {error}", log.display()));
}

/// A line of the log. The name of a test's thread is the test's name.
fn line(test: Option<&str>, why: &str) -> String {
    let test = test.unwrap_or("a thread without a name");
    format!("{test}: {}\n", why.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_test_and_the_reason() {
        assert_eq!(
            line(Some("exec::a_test"), "no\nway"),
            "exec::a_test: no way\n"
        );
        let name = std::thread::current().name().map(str::to_owned);
        assert!(
            name.unwrap()
                .ends_with("a_line_names_the_test_and_the_reason")
        );
    }
}
