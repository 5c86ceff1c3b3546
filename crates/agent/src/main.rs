//! The guest's `/init`. All of it is in the library of the same name.

fn main() {
    tollgate_agent::main()
}
