//! How bash asks what a word can be: it takes a colon for the end of a word.
//!
//! Invariant: the words are joined again before the question is answered, and what bash knows to
//! be there is left out of the answers.

use clap::Command;
use clap_complete::engine::complete;
use clap_complete::env::{Bash, EnvCompleter};
use std::ffi::{OsStr, OsString};
use std::io::{Error, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Asks and answers as [`Bash`] does, of words with colons in them.
pub struct Joining;

/// Where the script puts what is before the cursor in the place of the last word. Right behind a
/// colon that is nothing, and the colon would be gone.
const LAST_WORD: &str = "words[COMP_CWORD]=\"$2\"";
const LAST_WORD_OR_COLON: &str = "[[ ${words[COMP_CWORD]} == : ]] || words[COMP_CWORD]=\"$2\"";

impl EnvCompleter for Joining {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> Result<(), Error> {
        let mut script = Vec::new();
        Bash.write_registration(var, name, bin, completer, &mut script)?;
        let script = String::from_utf8_lossy(&script);
        let script = script.replacen(LAST_WORD, LAST_WORD_OR_COLON, 1);
        buf.write_all(script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        buf: &mut dyn Write,
    ) -> Result<(), Error> {
        let variable = |name| std::env::var(name).ok();
        let index = variable("_CLAP_COMPLETE_INDEX").and_then(|index| index.parse().ok());
        let (words, index) = joined(words, index.unwrap_or_default());
        let word = words.get(index).map_or(&b""[..], |word| word.as_bytes());
        let known = word.iter().rposition(|byte| *byte == b':');
        let known = known.map_or(0, |at| at + 1);
        let separator = variable("_CLAP_IFS").unwrap_or("\n".into());
        let found = complete(command, words, index, directory)?;
        for (n, found) in found.iter().enumerate() {
            if n > 0 {
                write!(buf, "{separator}")?;
            }
            let value = found.get_value().as_bytes();
            let rest = value.get(known..).unwrap_or_default();
            write!(buf, "{}", OsStr::from_bytes(rest).to_string_lossy())?;
        }
        Ok(())
    }
}

/// Words that stand on both sides of a colon are one.
fn joined(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let (mut all, mut now): (Vec<OsString>, usize) = (Vec::new(), 0);
    let mut goes_on = false;
    for (n, word) in words.into_iter().enumerate() {
        let is_colon = word.as_bytes().first() == Some(&b':');
        match all.last_mut() {
            Some(last) if n > 1 && (is_colon || goes_on) => {
                let whole = [last.as_bytes(), word.as_bytes()].concat();
                *last = OsString::from_vec(whole);
            }
            _ => all.push(word.clone()),
        }
        goes_on = is_colon;
        if n == index {
            now = all.len() - 1;
        }
    }
    (all, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_keeps_the_colon() {
        let mut script = Vec::new();
        let written = Joining.write_registration("A", "b", "b", "b", &mut script);
        written.unwrap();
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains(LAST_WORD_OR_COLON), "{script}");
    }

    #[test]
    fn colons_are_no_ends_of_words() {
        let cases: [(&[&str], usize, &[&str], usize); 5] = [
            (
                &["holdfast", "cp", "a", "b"],
                3,
                &["holdfast", "cp", "a", "b"],
                3,
            ),
            (
                &["holdfast", "cp", "p", ":", "x/y"],
                4,
                &["holdfast", "cp", "p:x/y"],
                2,
            ),
            (
                &["holdfast", "cp", "p", ":"],
                3,
                &["holdfast", "cp", "p:"],
                2,
            ),
            (
                &["holdfast", "cp", "p", ":", ""],
                4,
                &["holdfast", "cp", "p:"],
                2,
            ),
            (
                &["holdfast", "cp", "p", ":", "x", "q", ":", "y", "z"],
                7,
                &["holdfast", "cp", "p:x", "q:y", "z"],
                3,
            ),
        ];
        for (words, index, wanted, at) in cases {
            let words = words.iter().map(OsString::from).collect();
            let wanted: Vec<_> = wanted.iter().map(OsString::from).collect();
            assert_eq!(joined(words, index), (wanted, at));
        }
    }
}
