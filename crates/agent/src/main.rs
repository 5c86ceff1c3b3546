//! The program `/init` of the guest of `tollgate exec`. All code is in the library of the same
//! name.

fn main() {
    tollgate_agent::main()
}
