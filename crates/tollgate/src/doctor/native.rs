//! The check whether guest programs can run natively, in processes of their own.

use super::check::Check;
use tollgate_native::Instruction;

/// The check of native programs, which tries one.
pub fn optional() -> Check {
    let (works, found) = match tollgate_native::probe() {
        Ok(offer) => {
            let price = offer.leave_and_return.as_secs_f64() * 1e6;
            let unfit = match offer.facts.time_stamp_counter {
                Instruction::Faults => "",
                Instruction::Runs => "; pages with RDTSC are translated",
            };
            let found = format!("usable: {price:.1} us to leave and return{unfit}");
            (true, found)
        }
        Err(refusal) => (false, refusal.to_string()),
    };
    Check::optional(
        "native programs",
        works,
        found,
        "all code is translated: loops of 64-bit programs run at a half to a third of their speed",
    )
}
