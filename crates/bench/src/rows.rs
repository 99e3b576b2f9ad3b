//! The rows of `bench files`: what each measures, and its target.
//!
//! Invariants: names are unique; a target is a ratio of time to plain tmpfs in the same round.

use crate::worker::Body;

/// One row of the table.
pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    /// What one operation is.
    pub body: Body,
    /// Operations of the first pass at full size.
    pub ops: usize,
    /// What the medians are to reach in mode `posix`.
    pub posix: Option<f64>,
    /// What the medians are to reach in mode `strict`.
    pub strict: Option<f64>,
    /// The mean is to reach the target too.
    pub mean_too: bool,
    /// Measured with two threads and two processes as well.
    pub parallel: bool,
}

impl Row {
    const fn new(name: &'static str, title: &'static str, body: Body, ops: usize) -> Row {
        Row {
            name,
            title,
            body,
            ops,
            posix: None,
            strict: None,
            mean_too: false,
            parallel: true,
        }
    }

    const fn posix(mut self, ratio: f64) -> Row {
        self.posix = Some(ratio);
        self
    }

    const fn strict(mut self, ratio: f64) -> Row {
        self.strict = Some(ratio);
        self
    }

    const fn mean_too(mut self) -> Row {
        self.mean_too = true;
        self
    }

    const fn alone(mut self) -> Row {
        self.parallel = false;
        self
    }
}

/// Every row, in the order in which it is measured.
pub static ROWS: &[Row] = &[
    Row::new("pread-512", "pread 512 B", Body::Pread(512), 32768).posix(0.40),
    Row::new("pread-4k", "pread 4 KB", Body::Pread(4096), 16384).posix(0.45),
    Row::new(
        "pwrite-512",
        "pwrite 512 B",
        Body::Pwrite(512, false),
        32768,
    )
    .posix(0.30)
    .strict(0.45),
    Row::new("pwrite-4k", "pwrite 4 KB", Body::Pwrite(4096, false), 16384)
        .posix(0.40)
        .strict(0.35),
    Row::new(
        "pwrite-fsync-512",
        "pwrite 512 B + fsync",
        Body::Pwrite(512, true),
        4096,
    )
    .posix(0.30),
    Row::new(
        "pwrite-fsync-4k",
        "pwrite 4 KB + fsync",
        Body::Pwrite(4096, true),
        4096,
    )
    .posix(0.40),
    Row::new(
        "append-512",
        "append 512 B",
        Body::Append(512, false),
        32768,
    )
    .posix(0.30)
    .mean_too(),
    Row::new("append-4k", "append 4 KB", Body::Append(4096, false), 16384)
        .posix(0.35)
        .mean_too(),
    Row::new(
        "append-fsync-512",
        "append 512 B + fsync",
        Body::Append(512, true),
        4096,
    ),
    Row::new(
        "append-fsync-4k",
        "append 4 KB + fsync",
        Body::Append(4096, true),
        4096,
    ),
    Row::new(
        "read-512",
        "sequential read 512 B",
        Body::Read(512),
        131_072,
    )
    .posix(0.25),
    Row::new("read-4k", "sequential read 4 KB", Body::Read(4096), 16384).posix(0.45),
    Row::new("create", "create + close", Body::Create, 4096).posix(0.55),
    Row::new(
        "write-file",
        "create + write 4 KB + close",
        Body::WriteFile,
        1024,
    )
    .posix(0.5),
    Row::new("open", "open + close", Body::Open, 8192).posix(0.6),
    Row::new("stat", "stat", Body::Stat, 8192).posix(0.45),
    Row::new("rename", "rename", Body::Rename, 4096).posix(0.6),
    Row::new("unlink", "unlink", Body::Unlink, 4096).posix(0.45),
    Row::new("readdir", "readdir, per entry", Body::Readdir, 65536),
    Row::new("start", "start of /bin/true", Body::Start, 40).alone(),
];

/// The row of that name.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// How many do the same at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jobs {
    One,
    Threads,
    Processes,
}

impl Jobs {
    pub const ALL: [Jobs; 3] = [Jobs::One, Jobs::Threads, Jobs::Processes];

    /// Between coordinator and worker, and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Jobs::One => "1",
            Jobs::Threads => "2t",
            Jobs::Processes => "2p",
        }
    }

    /// In tables.
    pub fn title(self) -> &'static str {
        match self {
            Jobs::One => "one thread",
            Jobs::Threads => "two threads, each with files of its own",
            Jobs::Processes => "two processes, each with files of its own",
        }
    }

    /// From its name.
    pub fn find(name: &str) -> Option<Jobs> {
        Jobs::ALL.into_iter().find(|jobs| jobs.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (i, row) in ROWS.iter().enumerate() {
            assert!(std::ptr::eq(find(row.name).unwrap(), row));
            assert!(ROWS[..i].iter().all(|other| other.title != row.title));
        }
        assert!(find("nothing").is_none());
        assert_eq!(Jobs::find("2p"), Some(Jobs::Processes));
        assert_eq!(Jobs::find("3"), None);
    }
}
