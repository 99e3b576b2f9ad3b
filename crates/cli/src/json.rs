//! Writing JSON.
//!
//! Invariant: what `render` makes is one valid JSON text without a line break.

use std::fmt::Write;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Number(u64),
    Text(String),
    Bool(bool),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// The value as text.
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Json::Number(n) => {
                let _ = write!(out, "{n}");
            }
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Text(text) => write_text(text, out),
            Json::List(items) => write_all(items, ['[', ']'], out, |item, out| item.write(out)),
            Json::Object(fields) => write_all(fields, ['{', '}'], out, |(name, value), out| {
                write_text(name, out);
                out.push(':');
                value.write(out);
            }),
        }
    }
}

fn write_all<T>(
    items: &[T],
    ends: [char; 2],
    out: &mut String,
    mut each: impl FnMut(&T, &mut String),
) {
    out.push(ends[0]);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(ends[1]);
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rendered() {
        let value = Json::Object(vec![
            ("n", Json::Number(7)),
            ("ok", Json::Bool(true)),
            (
                "list",
                Json::List(vec![Json::Text("a\"b\\c\n".into()), Json::List(vec![])]),
            ),
        ]);
        assert_eq!(
            value.render(),
            "{\"n\":7,\"ok\":true,\"list\":[\"a\\\"b\\\\c\\u000a\",[]]}"
        );
    }
}
