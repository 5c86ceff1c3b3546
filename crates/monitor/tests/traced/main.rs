//! Tests that fork and trace the child processes. They are a program of their own, in which only
//! the children make machines: a child has one thread, and must not find a lock or an anchor held
//! by another thread of the parent.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../together/support/every_shape/mod.rs"]
mod every_shape;
mod interrupted_everywhere;
mod interrupted_strings;
mod resume_flag_in_frames;
mod tracer;
