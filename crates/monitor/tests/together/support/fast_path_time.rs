//! A check that the ledger has the time of functions that translated code calls.

use tollgate_exits::ExitKind;
use tollgate_monitor::Vcpu;

/// Fails unless calls in place of exits of these kinds were timed, and the ledger counts their time
/// outside guest code.
pub fn assert_timed_apart(vcpu: &Vcpu, kinds: &[ExitKind]) {
    let accounts = vcpu.ledger().accounts();
    for &kind in kinds {
        let record = accounts.fast_path_calls(kind);
        let is_timed = record.samples > 0 && record.cycles > 0;
        assert!(is_timed, "{kind:?}: {record:?}");
    }
    let shares = accounts.shares();
    assert!(shares.all_fast_path_calls() > 0, "{shares:?}");
    assert_eq!(shares.remainder(), shares.wall as i64 - shares.sum() as i64);
}
