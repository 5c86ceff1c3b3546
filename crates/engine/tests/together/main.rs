//! All tests of the engine from outside in one program: each program of its own would be linked
//! by itself.

mod documents;
mod eviction;
mod golden;
mod layers;
mod link_churn;
mod places;
mod sensitive_sequences;
mod support;
mod test_files;
mod verifier_mutations;
mod wording;
