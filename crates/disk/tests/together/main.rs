//! All tests of disks from outside in one program: each program of its own would be linked by
//! itself.

mod hostile_images;
mod image_tools;
mod images;
mod support;
