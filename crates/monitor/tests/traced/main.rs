//! Tests that fork, and trace what they have forked. They are a program of their own, in which no
//! machine is made but in the children: a child has one thread, and must not find that another
//! one of the parent's holds a lock or an anchor.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../together/support/every_shape/mod.rs"]
mod every_shape;
mod interrupted_everywhere;
mod interrupted_strings;
mod resume_flag_in_frames;
mod tracer;
