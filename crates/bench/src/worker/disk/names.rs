//! Operations on names without a sync.
//!
//! Invariant: each row begins and ends without its directory.

use super::{Plan, Took, data};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// Operations between two readings of the clock.
const STEP: usize = 50;

struct Names {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Names {
    fn new(plan: &Plan) -> io::Result<Names> {
        let dir = plan.path("names");
        data::fresh(&dir)?;
        let file = |i| dir.join(format!("file-{i:06}"));
        let files = (0..plan.ops(4000)).map(file).collect();
        Ok(Names { dir, files })
    }

    fn create(&self) -> io::Result<()> {
        self.files
            .iter()
            .try_for_each(|path| File::create_new(path).map(drop))
    }

    /// How many there are.
    fn count(&self) -> io::Result<usize> {
        Ok(fs::read_dir(&self.dir)?.count())
    }

    fn expect(&self, count: usize) -> io::Result<()> {
        match self.count()? {
            n if n == count => fs::remove_dir_all(&self.dir),
            n => Err(io::Error::other(format!(
                "{n} names where {count} should be"
            ))),
        }
    }
}

/// Creates empty files.
pub fn create(plan: &Plan) -> io::Result<Took> {
    let names = Names::new(plan)?;
    let step = |i: usize| File::create_new(&names.files[i]).map(drop);
    let took = plan.timed(names.files.len(), STEP, step)?;
    names.expect(took.ops)?;
    Ok(took)
}

/// Asks for the metadata of files, each several times.
pub fn stat(plan: &Plan) -> io::Result<Took> {
    let names = Names::new(plan)?;
    names.create()?;
    let n = names.files.len();
    let step = |i: usize| fs::metadata(&names.files[i * 7 % n]).map(drop);
    (0..n).try_for_each(step)?;
    let took = plan.timed(n * 8, STEP, step)?;
    names.expect(n)?;
    Ok(took)
}

/// Removes empty files.
pub fn unlink(plan: &Plan) -> io::Result<Took> {
    let names = Names::new(plan)?;
    names.create()?;
    let n = names.files.len();
    let took = plan.timed(n, STEP, |i| fs::remove_file(&names.files[i]))?;
    names.expect(n - took.ops)?;
    Ok(took)
}
