//! The program from outside: what is typed, what comes out, and with which exit code.
//!
//! `feature` says what works, `errors` what is refused and how, `matrix` that the answer is always the same. Every test
//! starts the program that was just built on the committed fixtures, in a directory of its own if it needs files.

mod errors;
mod feature;
mod help;
mod inspect;
mod learning;
mod matrix;
mod program;
mod replay;
mod text;
mod timeline;
