//! How 64-bit programs of tests' guests run.

/// The variable of the environment that says it.
const VARIABLE: &str = "TOLLGATE_TEST_USER_CODE";

/// The value of the knob `user-code` for tests that do not choose one: `TOLLGATE_TEST_USER_CODE`
/// in the environment makes the same tests run with programs that run natively, or adaptively.
/// `None` if the variable is not set.
///
/// # Panics
///
/// Panics if the variable has another value.
pub fn user_code() -> Option<&'static str> {
    let value = std::env::var(VARIABLE).ok()?;
    let known = ["translated", "native", "adaptive"];
    let found = known.into_iter().find(|known| *known == value);
    assert!(found.is_some(), "{VARIABLE}={value}: one of {known:?}");
    found
}
