//! What the caller of a benchmark may choose.
//!
//! Invariant: an empty filter lets everything through.

use crate::error::{Error, Result};
use std::path::PathBuf;

/// What the caller may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Rounds; each starts every peer once. 0: five, or one when quick.
    pub rounds: usize,
    /// A smoke test: small files, few operations.
    pub quick: bool,
    /// Parts of names of rows; only these are measured.
    pub rows: Vec<String>,
    /// Parts of names of peers; only these, and plain tmpfs, are measured.
    pub peers: Vec<String>,
    /// JSON in place of tables.
    pub json: bool,
    /// Where plots are written to.
    pub plot: Option<PathBuf>,
    /// `bench block`: programs on file systems, in place of requests.
    pub programs: bool,
    /// `bench disk`: a directory on the file system to measure.
    pub dir: Option<PathBuf>,
    /// `bench disk`: bytes of its largest file; 0: 10 GiB.
    pub large: u64,
    /// `bench disk`: the largest file has no holes.
    pub dense: bool,
}

impl Options {
    /// How many rounds there are.
    pub fn rounds(&self) -> usize {
        match (self.rounds, self.quick) {
            (0, true) => 1,
            (0, false) => 5,
            (n, _) => n,
        }
    }

    /// Whether the row is wanted.
    pub fn wants_row(&self, name: &str) -> bool {
        passes(&self.rows, name)
    }

    /// Whether a row is wanted by its name or by the title that the table shows.
    pub fn wants_titled(&self, name: &str, title: &str) -> bool {
        self.wants_row(name) || self.wants_row(title)
    }

    /// Each part that the caller named is in some row, of which there are these (name and title).
    pub fn check_rows<'r>(
        &self,
        rows: impl Iterator<Item = (&'r str, &'r str)> + Clone,
    ) -> Result<()> {
        let is_in =
            |part: &str, (name, title)| [name, title].iter().any(|s: &&str| s.contains(part));
        let unknown = self
            .rows
            .iter()
            .find(|part| !rows.clone().any(|row| is_in(part, row)));
        let Some(part) = unknown else {
            return Ok(());
        };
        let names: Vec<_> = rows.map(|(name, _)| name).collect();
        let names = names.join(", ");
        Err(Error::Usage(format!(
            "no row has {part} in its name; there are {names}"
        )))
    }

    /// Whether the peer is wanted. A hidden one must be asked for by its whole name.
    pub fn wants_peer(&self, name: &str, hidden: bool) -> bool {
        if hidden {
            return self.peers.iter().any(|p| p == name);
        }
        passes(&self.peers, name)
    }
}

fn passes(filter: &[String], name: &str) -> bool {
    filter.is_empty() || filter.iter().any(|part| name.contains(part.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_parts() {
        let mut options = Options::default();
        assert!(options.wants_row("pread-512") && options.wants_peer("tmpfs-huge", false));
        assert!(!options.wants_peer("tmpfs-again", true));
        options.rows = vec!["pread".into(), "stat".into()];
        options.peers = vec!["holdfast".into(), "tmpfs-again".into()];
        assert!(options.wants_row("pread-512") && options.wants_row("stat"));
        assert!(!options.wants_row("pwrite-512"));
        assert!(options.wants_peer("holdfast-sync", false) && !options.wants_peer("ext4", false));
        assert!(options.wants_peer("tmpfs-again", true));
    }

    #[test]
    fn rows_have_titles_and_unknown_ones_are_named() {
        let rows = [("walks", "find, grep"), ("redis", "redis, AOF")];
        let mut options = Options {
            rows: vec!["grep".into()],
            ..Options::default()
        };
        assert!(options.wants_titled("walks", "find, grep"));
        assert!(!options.wants_titled("redis", "redis, AOF"));
        assert!(options.check_rows(rows.into_iter()).is_ok());
        options.rows.push("rdis".into());
        let error = options.check_rows(rows.into_iter()).unwrap_err();
        let sentence = "no row has rdis in its name; there are walks, redis";
        assert_eq!(error.to_string(), sentence);
        assert!(Options::default().check_rows(rows.into_iter()).is_ok());
    }

    #[test]
    fn rounds_have_defaults() {
        assert_eq!(Options::default().rounds(), 5);
        assert_eq!(
            Options {
                quick: true,
                ..Options::default()
            }
            .rounds(),
            1
        );
        assert_eq!(
            Options {
                quick: true,
                rounds: 3,
                ..Options::default()
            }
            .rounds(),
            3
        );
    }
}
