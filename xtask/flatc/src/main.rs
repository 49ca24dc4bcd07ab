//! Runs the pinned flatbuffers compiler with the arguments it is given.

use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() {
    let error = Command::new(flatc_fork::flatc()).args(std::env::args_os().skip(1)).exec();
    eprintln!("cannot run {}: {error}", flatc_fork::flatc().display());
    std::process::exit(127);
}
