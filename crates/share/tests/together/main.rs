//! All integration tests of shares that can run at the same time, in one program, because each
//! program would have to be linked by itself.

mod at_once;
mod client;
mod escape;
mod files;
mod nine;
mod random_requests;
mod session;
mod unopened;
