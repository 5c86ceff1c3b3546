//! All integration tests of the engine in one program, since each further program would have to be
//! linked separately.

mod circles;
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
