//! Programs that run natively do what they do translated.

use tollgate_confine::{Part, host_offers};

use crate::support::exec::{Place, text};
use crate::support::{GUEST_PATIENCE, finish};

/// Programs that compute, start others, send signals to each other, map and unmap memory, and end in
/// several ways.
const SCRIPT: &str = r#"
i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; echo $i
awk 'BEGIN { for (i = 0; i < 200000; i++) s += i * i % 7; printf "%.3f\n", s / 3 }'
seq 1 20000 | sort -r -n | head -c 20000 | cksum
for code in 0 3 77; do sh -c "exit $code"; echo $?; done
sh -c 'kill -SEGV $$'; echo $?
sh -c 'trap "echo caught" USR1; kill -USR1 $$; kill -USR1 $$; echo after'
(sleep 0.1; echo late) & wait
dd if=/dev/zero bs=1M count=8 2>/dev/null | tr '\0' 'x' | md5sum
date +%Y > /dev/null && echo dated
"#;

/// Runs the script with these flags, and returns its output and the value of a count.
#[track_caller]
fn run(place: &Place, flags: &[&str], count: &str) -> (String, u64) {
    let mut command = place.exec(&[flags, &["--stats"]].concat(), &["sh", "-c", SCRIPT]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let stats = text(&output.stderr);
    let line = stats.lines().find(|line| line.starts_with(count));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let number = number.map(|number| number.replace(',', ""));
    let number = number.and_then(|number| number.parse().ok()).unwrap_or(0);
    (text(&output.stdout), number)
}

#[test]
fn programs_that_run_natively_do_what_they_do_translated() {
    let place = Place::new();
    let flags = ["--knob", "user-code=translated"];
    let (translated, entries) = run(&place, &flags, "native-entries");
    assert_eq!(entries, 0);
    let can_run = tollgate_native::probe().is_ok();
    let strict: &[&str] = match Part::ALL.into_iter().all(host_offers) {
        true => &["--confine", "strict"],
        false => &[],
    };
    // A restored machine and one that has booted; a process without confinement, and one that has it all.
    for more in [&[][..], &["--cold"], &["--confine", "off"], strict] {
        let flags = [&["--knob", "user-code=native"], more].concat();
        let (native, entries) = run(&place, &flags, "native-entries");
        assert_eq!(native, translated);
        assert_eq!(entries > 1000, can_run, "{entries}");
        let (_, deaths) = run(&place, &flags, "native-deaths");
        assert_eq!(deaths, 0);
    }
    let (adaptive, _) = run(&place, &["--knob", "user-code=adaptive"], "native-entries");
    assert_eq!(adaptive, translated);
}
