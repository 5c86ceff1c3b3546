//! All integration tests of the oracle in one program: separate programs would each be linked
//! separately.

mod findings;
mod overlong;
mod page_end;
mod states;
