//! Freeing what records cut out of trees, a little at a time.
//!
//! Invariants: one step is a bounded number of nodes and entries, whatever a record removed; after
//! damage this service frees nothing more, and everything else continues.

/// Nodes and entries with blocks that one step looks at: some milliseconds of work.
const STEP: usize = 8 * 1024;

/// What is known about freeing.
#[derive(Debug, Default)]
pub struct Reclaim {
    stuck: bool,
    /// What tests have instead of `STEP`.
    #[cfg(test)]
    pub step: Option<usize>,
}

impl Reclaim {
    /// How much one step looks at.
    pub fn work(&self) -> usize {
        #[cfg(test)]
        if let Some(step) = self.step {
            return step;
        }
        STEP
    }

    /// Whether nothing more can be freed.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// The trees do not let it go on.
    pub fn give_up(&mut self, why: &holdfast_pool::Error) {
        tracing::error!("what was removed is not freed any more: {why}");
        self.stuck = true;
    }
}
