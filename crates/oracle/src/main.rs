//! `tollgate-oracle`: runs random instructions on the host's processor and in a guest.

use std::process::ExitCode;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_oracle::families::Family;
use tollgate_oracle::guest::Continuation;
use tollgate_oracle::layout::World;
use tollgate_oracle::oracle::Oracle;
use tollgate_oracle::run::{Plan, run};
use tollgate_oracle::{generate, replay, report};

const USAGE: &str = "\
usage: tollgate-oracle [--states N] [--seed S] [--family NAME] [--threads N] [--failures N]
                       [--world NAME]
       tollgate-oracle --replay 'REPRODUCER'
       tollgate-oracle --families

Runs random instructions on this processor and in a guest and compares what they do.
  --states N      states to run (default 1000000)
  --seed S        seed of the first process (default 1)
  --family NAME   only this family
  --threads N     processes side by side, with seeds from S on (default 1)
  --world NAME    only these segments; legacy (all of 16- and 32-bit code, the default),
                  long (those of 64-bit code)
  --failures N    different failures to report before stopping (default 10)
  --spilled       the guest's registers live in memory (the engine's second map;
                  64-bit code has one of its own)
  --compatibility 16- and 32-bit code runs in compatibility mode
  --restored      each state is written out and continued by a new machine before it runs,
                  as after the restore of a snapshot (some hundred states a second)
  --trace         write each state to standard error before it runs
  --replay LINE   run one state again, as a report gives it
  --families      list the families";

struct Arguments {
    plan: Plan,
    processes: u64,
    replay: Option<String>,
}

fn worlds_of(name: &str) -> Result<&'static [World], String> {
    match name {
        "legacy" => Ok(World::legacy()),
        "long" => Ok(World::long()),
        _ => World::ALL
            .iter()
            .find(|world| world.name() == name && world.is_available())
            .map(std::slice::from_ref)
            .ok_or_else(|| format!("this host does not support the world: {name}")),
    }
}

fn name_of(worlds: &[World]) -> &'static str {
    match worlds {
        [one] => one.name(),
        _ if worlds == World::long() => "long",
        _ => "legacy",
    }
}

fn parse() -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        plan: Plan::default(),
        processes: 1,
        replay: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--help" {
            println!("{USAGE}");
            return Ok(None);
        }
        if word == "--trace" {
            arguments.plan.trace = true;
            continue;
        }
        if word == "--compatibility" {
            arguments.plan.compatibility = true;
            continue;
        }
        if word == "--restored" {
            arguments.plan.continuation = Continuation::Restored;
            continue;
        }
        if word == "--spilled" {
            arguments.plan.map = &RegisterMap::SPILLED;
            continue;
        }
        if word == "--families" {
            for family in Family::ALL {
                println!("{}", family.name());
            }
            return Ok(None);
        }
        let value = words
            .next()
            .ok_or_else(|| format!("{word} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{word}: not a number: {value}"))
        };
        match word.as_str() {
            "--states" => arguments.plan.states = number()?,
            "--seed" => arguments.plan.seed = number()?,
            "--threads" => arguments.processes = number()?.clamp(1, 256),
            "--failures" => arguments.plan.failures = number()?.max(1) as usize,
            "--world" => arguments.plan.worlds = worlds_of(&value)?,
            "--replay" => arguments.replay = Some(value),
            "--family" => {
                let family = Family::ALL.iter().find(|family| family.name() == value);
                arguments.plan.family =
                    Some(*family.ok_or_else(|| format!("no such family: {value}"))?);
            }
            _ => return Err(format!("unknown option: {word}")),
        }
    }
    Ok(Some(arguments))
}

fn replay_one(line: &str, plan: &Plan) -> Result<bool, String> {
    let (case, input) = replay::read(line)?;
    if !case.world.is_available() {
        return Err("this host does not permit the segments that the line names".to_owned());
    }
    let mut oracle = Oracle::new(&RegisterMap::LEGACY).map_err(|error| error.to_string())?;
    oracle.continue_in(plan.continuation);
    if plan.compatibility {
        oracle.use_compatibility_mode();
    }
    let expectation = generate::expectation(&case);
    let (text, agree) = report::describe(&mut oracle, &case, &input, expectation);
    print!("{text}");
    println!("{}", if agree { "both agree" } else { "they differ" });
    Ok(agree)
}

/// Runs a plan in several processes. The window's addresses exist only once in a process, so
/// threads are not possible.
fn side_by_side(plan: &Plan, processes: u64) -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut children = Vec::new();
    for index in 0..processes {
        let mut command = std::process::Command::new(&program);
        command
            .args(["--states", &(plan.states / processes).to_string()])
            .args(["--seed", &plan.seed.wrapping_add(index).to_string()])
            .args(["--failures", &plan.failures.to_string()])
            .args(["--world", name_of(plan.worlds)]);
        if *plan.map == RegisterMap::SPILLED {
            command.arg("--spilled");
        }
        if plan.compatibility {
            command.arg("--compatibility");
        }
        if plan.continuation == Continuation::Restored {
            command.arg("--restored");
        }
        if plan.trace {
            command.arg("--trace");
        }
        if let Some(family) = plan.family {
            command.args(["--family", family.name()]);
        }
        children.push(command.spawn().map_err(|error| error.to_string())?);
    }
    let mut agree = true;
    for mut child in children {
        agree &= child.wait().map_err(|error| error.to_string())?.success();
    }
    Ok(agree)
}

fn act() -> Result<bool, String> {
    let Some(arguments) = parse()? else {
        return Ok(true);
    };
    if let Some(line) = arguments.replay {
        return replay_one(&line, &arguments.plan);
    }
    if arguments.processes > 1 {
        return side_by_side(&arguments.plan, arguments.processes);
    }
    let start = std::time::Instant::now();
    let summary = run(&arguments.plan).map_err(|error| error.to_string())?;
    for failure in &summary.failures {
        println!("{failure}");
    }
    print!("{}", summary.table());
    println!(
        "seed {}, {:.0} states a second, {} failures",
        arguments.plan.seed,
        summary.total() as f64 / start.elapsed().as_secs_f64(),
        summary.failures.len()
    );
    Ok(summary.failures.is_empty())
}

fn main() -> ExitCode {
    match act() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tollgate-oracle: {error}");
            ExitCode::from(2)
        }
    }
}
