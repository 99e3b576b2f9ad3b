//! Volumes under file systems of the kernel, over loop devices and in virtual machines; and pools
//! in machines that have what this one may lack.

mod fuse;
mod guest;
mod kernel_btt;
mod persistent;
mod site;
mod systems;
mod units;

use crate::bad_input::run_cases;
use std::process::ExitCode;

/// `hf-e2e loops`
pub fn main(names: &[&str]) -> ExitCode {
    let tables = [
        systems::CASES,
        fuse::CASES,
        guest::CASES,
        persistent::CASES,
        kernel_btt::CASES,
        units::CASES,
    ];
    run_cases("loops", &tables.concat(), names)
}
