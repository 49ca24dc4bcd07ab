//! The `kvasir` command.

use std::process::ExitCode;

use kvasir::shm::heap::{PROGRAM_ALLOCATOR, ProgramAllocator};

#[global_allocator]
static ALLOCATOR: ProgramAllocator = PROGRAM_ALLOCATOR;

fn main() -> ExitCode {
    kvasir::cli::main(std::env::args_os())
}
