//! Holdfast judged from the outside, through its command alone: nothing here links to it.
//!
//! Every test command ends with a line of sums and exits 0 only if nothing failed. The commands
//! `dump`, `write` and `verify` are programs that the tests start on a pool.
#![forbid(unsafe_code)]

mod bad_input;
mod block;
mod capacity;
mod containers;
mod dump;
mod faces;
mod faults;
mod loops;
mod mapping;
mod outcome;
mod process;
mod programs;
mod snapshots;
mod users;

use std::process::ExitCode;

const USAGE: &str = "usage: hf-e2e COMMAND
  programs [--baseline] [NAME...]   real programs, on tmpfs and on a pool, compared
  faults [--baseline] [--medium=MEDIUM] [WORD...]
                                    kills at random moments; HF_FAULT_SECONDS, HF_FAULT_SEED;
                                    fails where the pool lies on another medium
  snapshots [NAME...]               what programs see of snapshots
  bad-input [NAME...]               what must be refused, and how
  block [NAME...]                   volumes as block devices
  capacity [NAME...]                what ordinary work asks for at once
  containers [NAME...]              programs in namespaces of their own
  users [NAME...]                   users of one pool who do not trust each other
  faces [NAME...]                   keys and values: commands, C, documents, LMDB's tools
  loops [NAME...]                   file systems and guests on exported volumes; as root
  mapping [NAME...]                 mappings of the host's files with --map
  dump DIR                          a canonical listing of a tree
  write DIR ID SEED SYNC_CALLS      works step by step and acknowledges each
  verify DIR MODE ID:SEED:ACKED...  judges what writers left
environment: HOLDFAST (the command), HF_WORK (scratch), HF_KEEP (leave failed work behind),
  HF_GUEST (a kernel for guests)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["programs", names @ ..] => programs::main(names),
        ["faults", args @ ..] => faults::main(args),
        ["snapshots", names @ ..] => snapshots::main(names),
        ["bad-input", names @ ..] => bad_input::main(names),
        ["block", names @ ..] => block::main(names),
        ["capacity", names @ ..] => capacity::main(names),
        ["containers", names @ ..] => containers::main(names),
        ["faces", names @ ..] => faces::main(names),
        ["loops", names @ ..] => loops::main(names),
        ["mapping", names @ ..] => mapping::main(names),
        ["users", names @ ..] => users::main(names),
        ["act"] => users::actor::main(),
        ["dump", dir] => dump::main(dir),
        ["write", dir, id, seed, sync, counter] => {
            faults::writer::main(dir, id, seed, sync, counter)
        }
        ["verify", dir, mode, writers @ ..] => faults::verify::main(dir, mode, writers),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
