//! The small system in a machine of this process: each workload in each mode does its work,
//! including the hooks, as [`tollgate_lab::small_system::run`] verifies.

use tollgate_exits::ExitKind;
use tollgate_lab::small_system::{Mode, Run, Setup, SmallSystemError, Workload, run};
use tollgate_machine::config::VmConfig;

/// Runs the small system with all emitted code verified.
fn run_small_system(
    workload: Workload,
    mode: Mode,
    rate: Option<u16>,
) -> Result<Run, SmallSystemError> {
    let setup = Setup {
        workload,
        mode,
        rate,
    };
    let config = VmConfig {
        verify_code: true,
        ..VmConfig::default()
    };
    run(&setup, &config)
}

#[track_caller]
fn does_its_work(workload: Workload, mode: Mode, rate: Option<u16>) -> Run {
    match run_small_system(workload, mode, rate) {
        Ok(run) => run,
        Err(error) => panic!("{} in mode {}: {error}", workload.name(), mode.name()),
    }
}

const ALWAYS: [Mode; 3] = [Mode::Real, Mode::V86, Mode::V86Iopl3];
const WORKLOADS: [Workload; 6] = [
    Workload::Idle { ticks: 20 },
    Workload::CopyType { rounds: 2 },
    Workload::Mix { rounds: 3 },
    Workload::Compute { rounds: 2 },
    Workload::Flags { count: 1000 },
    Workload::Echo { lines: 5 },
];

#[test]
fn every_workload_does_its_work_in_real_mode_and_as_a_virtual_8086_task() {
    for workload in WORKLOADS {
        for mode in ALWAYS {
            does_its_work(workload, mode, Some(100));
        }
    }
}

#[test]
fn the_work_is_the_same_in_every_mode_but_for_the_ticks() {
    let fixed = |run: &Run| -> Vec<(&str, u64)> {
        let mut pairs = run.report.done.counters.pairs();
        pairs.retain(|(key, _)| {
            ![
                "ticks", "int1c", "hook1c", "int16", "hook16", "polls", "idles",
            ]
            .contains(key)
        });
        pairs
    };
    let workload = Workload::Mix { rounds: 2 };
    let [real, v86, iopl3] = ALWAYS.map(|mode| does_its_work(workload, mode, None));
    assert_eq!(fixed(&real), fixed(&v86));
    assert_eq!(fixed(&real), fixed(&iopl3));
    assert_eq!(real.report.transcript, v86.report.transcript);
}

#[test]
fn an_idle_prompt_waits_for_its_ticks_and_polls_all_the_while() {
    let counters = does_its_work(Workload::Idle { ticks: 30 }, Mode::Real, Some(100))
        .report
        .done
        .counters;
    assert!(counters.ticks >= 30, "{counters:?}");
    assert!(counters.idles >= 30, "{counters:?}");
    assert!(counters.hook1c >= 30, "{counters:?}");
}

#[test]
fn ticks_arrive_through_the_hooks_while_it_computes() {
    // At 500 Hz, a tick occurs during the work however fast it is.
    let workload = Workload::Compute { rounds: 20 };
    for mode in ALWAYS {
        let counters = does_its_work(workload, mode, Some(500))
            .report
            .done
            .counters;
        assert!(counters.hook1c > 0, "{}: {counters:?}", mode.name());
    }
}

#[test]
fn interrupts_wait_while_the_task_has_its_flag_down() {
    // The typist runs with interrupts off and makes the keyboard's request itself.
    let run = does_its_work(Workload::CopyType { rounds: 1 }, Mode::V86, None);
    let monitor = run.report.monitor.unwrap();
    assert!(
        monitor.deferred >= run.report.done.counters.typed,
        "{monitor:?}"
    );
}

#[test]
fn no_key_is_lost_among_many_ticks() {
    // Ticks occur while keys are being handled and the task's interrupt flag is clear.
    let workload = Workload::Mix { rounds: 40 };
    for mode in ALWAYS {
        does_its_work(workload, mode, Some(1000));
    }
}

#[test]
fn with_vme_the_task_runs_by_itself_or_the_guest_says_that_there_is_none() {
    for workload in WORKLOADS {
        match run_small_system(workload, Mode::V86Vme, Some(100)) {
            Ok(run) => assert_eq!(run.report.monitor.unwrap().int, 0),
            Err(error) => assert_eq!(
                error,
                SmallSystemError::Refused("this processor has no CR4.VME".to_owned())
            ),
        }
    }
}

#[test]
fn an_amount_of_nothing_is_refused() {
    let error = run_small_system(Workload::Mix { rounds: 0 }, Mode::Real, None).unwrap_err();
    assert_eq!(
        error,
        SmallSystemError::Refused("wrong value: rounds=0".to_owned())
    );
}

#[test]
fn a_task_and_its_monitor_change_places_without_exits() {
    const COUNT: u64 = 2_000;
    let workload = Workload::Flags {
        count: COUNT as u32,
    };
    for mode in [Mode::V86, Mode::V86Iopl3] {
        let run = does_its_work(workload, mode, None);
        let monitor = run.report.monitor.as_ref();
        let emulated: u64 = monitor
            .map_or(Vec::new(), |monitor| monitor.pairs())
            .iter()
            .filter(|(name, _)| ["cli", "sti", "pushf", "popf", "int", "iret"].contains(name))
            .map(|(_, count)| count)
            .sum();
        assert!(emulated >= COUNT, "{emulated} in {mode:?}");
        let kinds = [
            ExitKind::GuestException,
            ExitKind::SoftwareInterrupt,
            ExitKind::Iret,
        ];
        let exits: u64 = run
            .reading
            .kinds
            .iter()
            .filter(|row| kinds.contains(&row.kind))
            .map(|row| row.count)
            .sum();
        // This includes the ticks of a busy host.
        assert!(exits < emulated / 4, "{exits} for {emulated} in {mode:?}");
    }
}
