//! All tests of shares from outside that can run beside each other, in one program: each program
//! of its own would be linked by itself.

mod at_once;
mod client;
mod escape;
mod files;
mod random_requests;
mod unopened;
