//! Tests that guest time and host time advance at the same rate.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::linux::{self, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::session::Session;

/// The greatest difference between the clocks, as a part of the elapsed time.
const TOLERANCE: f64 = 0.005;

/// The guest's clocks, read between two host times.
struct Reading {
    asked: Instant,
    answered: Instant,
    /// The seconds since the kernel started.
    uptime: f64,
    /// The seconds since 1970.
    date: f64,
}

impl Reading {
    #[track_caller]
    fn take(guest: &mut Session) -> Self {
        let asked = Instant::now();
        let text = guest.shell("read -r up rest < /proc/uptime; adjtimex; echo up: $up");
        let answered = Instant::now();
        let number = |name: &str| -> f64 {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix(name))
                .find_map(|value| value.trim().parse().ok())
                .unwrap_or_else(|| panic!("no {name} in:\n{text}"))
        };
        Self {
            asked,
            answered,
            uptime: number("up:"),
            date: number("time.tv_sec:") + number("time.tv_usec:") / 1e6,
        }
    }

    /// Takes several readings and returns the one that was answered fastest, whose time is known
    /// best.
    #[track_caller]
    fn best(guest: &mut Session) -> Self {
        let readings = (0..7).map(|_| Self::take(guest));
        readings.min_by_key(Self::uncertainty).unwrap()
    }

    fn uncertainty(&self) -> Duration {
        self.answered - self.asked
    }
}

#[test]
fn guest_clocks_agree_with_the_host_over_a_minute() {
    clocks_agree(DEBIAN_686_PAE);
}

#[test]
fn clocks_of_a_64_bit_guest_agree_with_the_host_over_a_minute() {
    clocks_agree(DEBIAN_AMD64);
}

#[track_caller]
fn clocks_agree(kernel: &str) {
    let mut command = linux::run(kernel);
    command.args(["-m", "256M"]);
    let mut guest = linux::boot(command);

    let first = Reading::best(&mut guest);
    // Half of the time is busy, half of it idle.
    guest.shell("(while :; do :; done) & true");
    thread::sleep(Duration::from_secs(31));
    guest.shell("kill $!");
    thread::sleep(Duration::from_secs(31));
    let last = Reading::best(&mut guest);

    // The time is measured from the middle of one exchange to the middle of the other.
    let middle = |reading: &Reading| reading.asked + reading.uncertainty() / 2;
    let host = (middle(&last) - middle(&first)).as_secs_f64();
    assert!(host > 60.0);
    for (clock, passed) in [
        ("/proc/uptime", last.uptime - first.uptime),
        ("the date", last.date - first.date),
    ] {
        println!(
            "{clock}: {passed:.3} s in {host:.3} s ({:+.3} %), read within {:?} and {:?}",
            (passed / host - 1.0) * 100.0,
            first.uncertainty(),
            last.uncertainty()
        );
        assert!(
            (passed - host).abs() <= host * TOLERANCE,
            "{clock}: {passed} s passed in the guest, {host} s on the host"
        );
    }
    // Timer interrupts keep the same time: a sleep ends when the host's clock says so.
    let started = Instant::now();
    guest.shell("sleep 20");
    let slept = started.elapsed().as_secs_f64();
    println!("sleep 20: {slept:.3} s");
    assert!(slept >= 20.0 * (1.0 - TOLERANCE), "sleep 20 took {slept} s");
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}
