//! All tests of the oracle from outside in one program: each program of its own would be linked
//! by itself.

mod findings;
mod overlong;
mod page_end;
mod states;
