//! What the checker says.
//!
//! Invariant: at most `FINDINGS_MAX` findings are kept; the others are counted.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Findings that are kept.
pub const FINDINGS_MAX: usize = 1000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// A rule of the specification does not hold.
    Damage,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Inode number of the object that it is about.
    pub ino: Option<u64>,
    /// Path of that object from the pool's root, when known.
    pub path: Option<Vec<u8>>,
    /// Page of `meta.seg` in which it was seen.
    pub page: Option<u64>,
    pub what: String,
}

/// Totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of the commit that was checked.
    pub commit: u64,
    pub objects: u64,
    pub directories: u64,
    pub orphans: u64,
    pub names: u64,
    pub tree_pages: u64,
    pub data_blocks: u64,
    /// Records in the journal that the trees do not know yet.
    pub records_waiting: u64,
    pub snapshots: u64,
}

/// Everything that a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Findings of damage that were not kept.
    pub more: u64,
    pub summary: Summary,
}

impl Report {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.more == 0 && self.damage().next().is_none()
    }

    /// The findings of damage.
    pub fn damage(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|f| f.severity == Severity::Damage)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Note {
            f.write_str("note: ")?;
        }
        if let Some(path) = &self.path {
            write!(f, "{}: ", String::from_utf8_lossy(path))?;
        }
        if let Some(ino) = self.ino {
            write!(f, "object {ino}: ")?;
        }
        f.write_str(&self.what)?;
        match self.page {
            Some(page) => write!(f, " (page {page} of meta.seg)"),
            None => Ok(()),
        }
    }
}

/// Collects findings.
#[derive(Default)]
pub(super) struct Log {
    pub findings: Vec<Finding>,
    more: u64,
}

impl Log {
    pub fn damage(&mut self, ino: Option<u64>, page: Option<u64>, what: impl Into<String>) {
        if self.findings.len() >= FINDINGS_MAX {
            self.more += 1;
            return;
        }
        let (severity, what) = (Severity::Damage, what.into());
        self.findings.push(Finding {
            severity,
            ino,
            path: None,
            page,
            what,
        });
    }

    /// How many findings of damage there are so far.
    pub fn damages(&self) -> u64 {
        self.findings.len() as u64 + self.more
    }

    pub fn note(&mut self, what: impl Into<String>) {
        let (severity, what) = (Severity::Note, what.into());
        self.findings.push(Finding {
            severity,
            ino: None,
            path: None,
            page: None,
            what,
        });
    }

    pub fn finish(self, summary: Summary) -> Report {
        Report {
            findings: self.findings,
            more: self.more,
            summary,
        }
    }
}
