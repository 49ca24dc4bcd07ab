//! Developer tasks of Kvasir.

fn main() {}
