//! What an export says, as JSON.
//!
//! Invariant: what was parsed has texts of limited length and times in order, whoever wrote it.

use holdfast::{Counted, Latency};
use serde::{Deserialize, Serialize};

/// Bytes of one report, at most.
pub const REPORT_MAX: usize = 256 << 10;
/// Bytes of each text in it.
const TEXT_MAX: usize = 4096;

/// What an export says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The volume's name.
    pub volume: String,
    /// Which of the volume's snapshots it is.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// How clients reach it: nbd, fuse, vhost-user.
    pub face: String,
    /// Where clients find it.
    pub address: String,
    /// What keeps stray stores from the pool; none where a proxy makes the calls.
    #[serde(default)]
    pub protection: Option<String>,
    /// Whether clients cannot write.
    pub read_only: bool,
    /// The process that serves, in its own PID namespace.
    pub process: u32,
    /// When it began: seconds since 1970.
    pub since: u64,
    /// Clients that are connected.
    pub clients: u64,
    pub reads: Requests,
    pub writes: Requests,
    pub flushes: Requests,
    pub trims: Requests,
    pub zeroes: Requests,
}

/// Requests of one kind since the export began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Those that were done.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that failed.
    pub failed: u64,
    /// How long those took that were done: all together, and the longest.
    pub total_ns: u64,
    pub max_ns: u64,
    /// As `Latency::spread`.
    pub spread: Vec<(u64, u64)>,
}

impl Report {
    /// The kinds of requests, by name.
    pub fn kinds(&self) -> [(&'static str, &Requests); 5] {
        [
            ("reads", &self.reads),
            ("writes", &self.writes),
            ("flushes", &self.flushes),
            ("trims", &self.trims),
            ("zeroes", &self.zeroes),
        ]
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Nothing in it cannot be JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What somebody wrote, if it is a report.
    pub(crate) fn parse(json: &[u8]) -> Option<Report> {
        let report: Report = serde_json::from_slice(json).ok()?;
        let texts = [
            Some(&report.volume),
            report.snapshot.as_ref(),
            Some(&report.face),
            Some(&report.address),
            report.protection.as_ref(),
        ];
        let short = texts
            .into_iter()
            .flatten()
            .all(|text| text.len() <= TEXT_MAX);
        let sound = report.kinds().iter().all(|(_, requests)| {
            let spread = &requests.spread;
            spread.is_sorted_by(|(one, _), (next, _)| one < next)
        });
        (short && sound).then_some(report)
    }
}

impl Requests {
    pub(crate) fn new(counted: Counted, latency: Latency) -> Requests {
        Requests {
            requests: counted.requests,
            bytes: counted.bytes,
            failed: counted.failed,
            total_ns: latency.total_ns,
            max_ns: latency.max_ns,
            spread: latency.spread,
        }
    }

    /// How long they took.
    pub fn latency(&self) -> Latency {
        Latency {
            total_ns: self.total_ns,
            max_ns: self.max_ns,
            spread: self.spread.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            volume: "a \"disk\"\n".into(),
            face: "nbd".into(),
            address: "nbd+unix:///?socket=/s".into(),
            protection: Some("pkey".into()),
            reads: Requests {
                requests: 3,
                bytes: u64::MAX,
                spread: vec![(15, 2), (17, 1)],
                ..Requests::default()
            },
            ..Report::default()
        }
    }

    #[test]
    fn reports_come_back() {
        assert_eq!(Report::parse(&report().to_json()), Some(report()));
        // A later version may say more.
        let text = String::from_utf8(report().to_json()).unwrap();
        let more = text.replacen('{', "{\"color\":\"red\",", 1);
        assert_eq!(Report::parse(more.as_bytes()), Some(report()));
    }

    #[test]
    fn anything_else_is_refused() {
        let json = report().to_json();
        for len in 0..json.len() {
            assert_eq!(Report::parse(&json[..len]), None, "{len}");
        }
        let long = Report {
            volume: "x".repeat(TEXT_MAX + 1),
            ..report()
        };
        assert_eq!(Report::parse(&long.to_json()), None);
        let mut mixed = report();
        mixed.reads.spread = vec![(17, 1), (15, 2)];
        assert_eq!(Report::parse(&mixed.to_json()), None);
        let deep = "[".repeat(100_000);
        for text in ["", "{}", "[]", "null", "\u{0}", deep.as_str()] {
            assert_eq!(Report::parse(text.as_bytes()), None);
        }
    }
}
