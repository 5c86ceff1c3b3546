//! The guest's `/init`. All code is in the library of the same name.

fn main() {
    tollgate_agent::main()
}
