//! Integration tests of the kernel's side.

mod uverbs;
