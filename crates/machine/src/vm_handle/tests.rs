use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn commands_come_out_once_and_in_order() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    assert!(!commands.has_commands());
    handle.power_button();
    handle.quit();
    assert!(commands.has_commands());
    assert_eq!(commands.take(), [Command::PowerButton, Command::Quit]);
    assert!(!commands.has_commands());
    assert_eq!(commands.take(), []);
}

#[test]
fn only_the_latest_of_pause_and_resume_is_kept() {
    let handle = VmHandle::new();
    for _ in 0..1000 {
        handle.pause();
        handle.resume();
        handle.power_button();
    }
    handle.pause();
    assert_eq!(
        handle.commands().take(),
        [Command::PowerButton, Command::Pause]
    );
}

#[test]
fn of_each_knob_only_the_latest_value_is_kept() {
    let handle = VmHandle::new();
    let set = |text: &str| Assignment::parse(text).unwrap();
    for _ in 0..1000 {
        handle.turn_knobs(&[set("vif=off"), set("vir=off")]);
        handle.turn_knobs(&[set("vif=on")]);
    }
    assert_eq!(
        handle.commands().take(),
        [Command::Set(set("vir=off")), Command::Set(set("vif=on"))]
    );
}

#[test]
fn toggling_alternates_between_pause_and_resume() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    assert!(handle.toggle_pause());
    assert_eq!(commands.take(), [Command::Pause]);
    assert!(!handle.toggle_pause());
    assert_eq!(commands.take(), [Command::Resume]);
}

#[test]
fn serial_input_is_bounded_and_keeps_its_order() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    let bytes: Vec<u8> = (0..SERIAL_INPUT_CAPACITY + 10).map(|n| n as u8).collect();
    assert_eq!(handle.serial_input(&bytes), SERIAL_INPUT_CAPACITY);
    assert_eq!(handle.serial_input(b"x"), 0);
    assert!(commands.take_serial_input(0).is_empty());
    assert_eq!(commands.take_serial_input(3), [0, 1, 2]);
    assert_eq!(handle.serial_input(b"abcd"), 3);
    let rest = commands.take_serial_input(usize::MAX);
    assert_eq!(rest.len(), SERIAL_INPUT_CAPACITY);
    assert_eq!(rest[rest.len() - 3..], *b"abc");
    assert!(!commands.has_serial_input());
}

#[test]
fn keys_are_bounded_and_keep_their_order() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    assert_eq!(commands.take_key(), None);
    for event in 0..KEY_CAPACITY {
        assert!(handle.key(Key::new(event as u8), event % 2 == 0));
    }
    assert!(!handle.key(Key::A, true));
    assert!(commands.wait_for_work(None));
    for event in 0..KEY_CAPACITY {
        let key = (Key::new(event as u8), event % 2 == 0);
        assert_eq!(commands.take_key(), Some(key));
    }
    assert_eq!(commands.take_key(), None);
}

#[test]
fn moves_of_the_mouse_are_one_until_a_button_changes() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    let moved = |right, buttons| MouseEvent {
        right,
        down: -right,
        wheel: 0,
        buttons,
    };
    let (none, left) = (Buttons::empty(), Buttons::LEFT);
    assert_eq!(commands.take_mouse(), None);
    assert!(handle.mouse(&[moved(1, none), moved(2, none), moved(0, left)]));
    assert!(handle.mouse(&[moved(4, left), moved(0, none)]));
    assert_eq!(handle.mouse_buttons(), none);
    assert!(commands.wait_for_work(None));
    let expected = [
        moved(3, none),
        moved(0, left),
        moved(4, left),
        moved(0, none),
    ];
    for event in expected {
        assert_eq!(commands.take_mouse(), Some(event));
    }
    assert_eq!(commands.take_mouse(), None);
    let clicks = [moved(0, left), moved(0, none)];
    let taken = (0..).take_while(|_| handle.mouse(&clicks)).count();
    assert_eq!(taken, MOUSE_CAPACITY / 2);
}

#[test]
fn each_command_and_input_kicks_the_vcpu_until_the_kick_is_removed() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    let kicks = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&kicks);
    commands.install_kick(Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    handle.pause();
    handle.serial_input(b"a");
    handle.serial_input(b"");
    assert_eq!(kicks.load(Ordering::Relaxed), 2);
    commands.remove_kick();
    handle.quit();
    assert_eq!(kicks.load(Ordering::Relaxed), 2);
}

#[test]
fn a_paused_machine_sleeps_through_serial_input() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    handle.serial_input(b"a");
    assert!(!commands.wait_for_command(Some(Duration::from_millis(1))));
    assert!(commands.wait_for_work(None));
}

#[test]
fn a_command_wakes_the_sleeping_vcpu() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    let vcpu = thread::spawn(move || {
        let woken = commands.wait_for_command(Some(LONG));
        (woken, commands.take())
    });
    handle.resume();
    assert_eq!(vcpu.join().unwrap(), (true, vec![Command::Resume]));
}

#[test]
fn a_fresh_status_is_the_one_published_after_the_request() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    commands.publish(Status {
        exits: 1,
        ..Status::default()
    });
    let vcpu = thread::spawn(move || {
        assert!(commands.wait_for_command(Some(LONG)));
        assert_eq!(commands.take(), [Command::ReportStatus]);
        commands.publish(Status {
            state: State::Running,
            exits: 2,
            ..Status::default()
        });
    });
    let status = handle.fresh_status(LONG);
    assert_eq!((status.state, status.exits), (State::Running, 2));
    assert!(status.uptime_ns > 0);
    vcpu.join().unwrap();
}

fn reading() -> Reading {
    let ledger = tollgate_exits::Ledger::new(Default::default, Default::default());
    Reading::of(&ledger, 1, 0)
}

#[test]
fn readings_are_published_when_asked_for_and_serve_others_for_a_moment() {
    let handle = VmHandle::new();
    let commands = handle.commands();
    let vcpu = thread::spawn(move || {
        assert!(commands.wait_for_command(Some(LONG)));
        assert_eq!(commands.take(), [Command::ReportReading]);
        commands.publish_reading(reading());
    });
    let first = handle.fresh_reading(LONG).unwrap();
    vcpu.join().unwrap();
    assert_eq!(first.tsc_khz, 1);
    thread::sleep(READING_AGE);
    // No thread answers any more, and the old reading is too old.
    assert!(handle.fresh_reading(Duration::from_millis(1)).is_none());
    handle.commands().publish_reading(reading());
    let second = handle.fresh_reading(Duration::ZERO).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
}

#[test]
fn a_ledger_that_was_begun_anew_is_not_those_before() {
    let handle = VmHandle::new();
    handle.commands().publish_reading(reading());
    let request = handle.request_reset_of_ledger();
    assert!(!handle.has_reset_ledger(request));
    assert!(!handle.reset_ledger(Duration::from_millis(1)));
    let commands = handle.commands();
    assert_eq!(commands.take(), [Command::ResetLedger]);
    commands.forget_ledger();
    assert!(handle.has_reset_ledger(request));
    assert!(handle.fresh_reading(Duration::from_millis(1)).is_none());
}

#[test]
fn a_stopped_machine_has_no_ledger() {
    let handle = VmHandle::new();
    handle.commands().publish(Status {
        state: State::Stopped,
        ..Status::default()
    });
    assert!(handle.fresh_reading(LONG).is_none());
}

#[test]
fn a_stopped_or_silent_machine_does_not_hold_up_its_readers() {
    let handle = VmHandle::new();
    let silent = handle.fresh_status(Duration::from_millis(1));
    assert_eq!(silent.state, State::Starting);
    handle.commands().publish(Status {
        state: State::Stopped,
        ..Status::default()
    });
    assert_eq!(handle.fresh_status(LONG).state, State::Stopped);
    let seen = handle.wait_for_status(LONG, |status| status.state == State::Stopped);
    assert_eq!(seen.state, State::Stopped);
}
