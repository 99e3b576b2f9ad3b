//! Prometheus' text format.
//!
//! Invariant: a line is one value, whatever is in its labels.

use std::fmt::{Display, Write as _};

#[derive(Clone, Copy)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// What values of this name are.
pub fn head(text: &mut String, kind: Kind, name: &str, help: &str) {
    let kind = match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
    };
    let _ = writeln!(text, "# HELP holdfast_{name} {help}");
    let _ = writeln!(text, "# TYPE holdfast_{name} {kind}");
}

pub fn value(text: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(text, "holdfast_{name}{{{labels}}} {value}");
}

/// What stands between the braces.
pub fn labels(all: &[(&str, &str)]) -> String {
    let each = all.iter().map(|(name, value)| {
        let value = escaped(value);
        format!("{name}=\"{value}\"")
    });
    each.collect::<Vec<_>>().join(",")
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("/a b"), "/a b");
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        let two = labels(&[("pool", "/p"), ("kind", "\"")]);
        assert_eq!(two, "pool=\"/p\",kind=\"\\\"\"");
    }
}
