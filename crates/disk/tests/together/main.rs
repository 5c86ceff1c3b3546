//! All integration tests of disks in one program, because each program would have to be linked by
//! itself.

mod hostile_images;
mod image_tools;
mod images;
mod support;
