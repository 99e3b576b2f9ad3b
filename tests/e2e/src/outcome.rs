//! The verdicts of a test command: each test is counted exactly once and named unless it passed.

use std::process::ExitCode;
use std::sync::Mutex;

/// What became of one test.
pub enum Verdict {
    Passed,
    /// Why, in lines.
    Failed(Vec<String>),
    /// Why it could not run here.
    Skipped(String),
}

#[derive(Default)]
struct Sums {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Collects verdicts, from several threads if need be.
#[derive(Default)]
pub struct Outcomes(Mutex<Sums>);

impl Outcomes {
    pub fn add(&self, name: &str, verdict: Verdict) {
        let mut sums = self.0.lock().expect("no thread panics while it holds this");
        match verdict {
            Verdict::Passed => {
                sums.passed += 1;
                println!("ok {name}");
            }
            Verdict::Failed(why) => {
                sums.failed += 1;
                println!("FAILED {name}");
                why.iter()
                    .flat_map(|w| w.lines())
                    .for_each(|line| println!("    {line}"));
            }
            Verdict::Skipped(why) => {
                sums.skipped += 1;
                println!("skipped {name} ({why})");
            }
        }
    }

    /// Prints the closing line.
    pub fn finish(self) -> ExitCode {
        let sums = self.0.into_inner().expect("no thread panicked");
        println!(
            "{} passed, {} failed, {} skipped",
            sums.passed, sums.failed, sums.skipped
        );
        if sums.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
