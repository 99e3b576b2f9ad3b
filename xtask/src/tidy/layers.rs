//! The folders of a crate are layers: what one imports is below it.
//!
//! A file's imports are the paths in its code that begin with `crate::` or `super::`. The root of
//! the crate is above all layers, so nothing else may import from it. Tests are not looked at.

use super::source::{Source, is_ident};
use super::{Offender, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// The crates that are built in layers.
const LAYERED: &[&str] = &["client", "service"];
/// Files that may need each other.
const CYCLE_MAX: usize = 3;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// No folder imports from one that imports from it, by whatever way round.
pub fn folder_cycle(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for name in LAYERED {
        let mut folders = Graph::new();
        for (file, imports) in files(tree, name) {
            let from = folder(&file).to_string();
            let others = imports.iter().map(|to| folder(to)).filter(|to| *to != from);
            let others: Vec<String> = others.map(String::from).collect();
            folders.entry(from).or_default().extend(others);
        }
        for cycle in cycles(&folders).into_iter().filter(|c| c.len() > 1) {
            let why = format!("these folders import each other: {}", cycle.join(", "));
            offenders.push(Offender::new(&format!("crates/{name}/src"), 0, why));
        }
    }
    offenders
}

/// No more than `CYCLE_MAX` files need each other.
pub fn file_cycle(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for name in LAYERED {
        for cycle in cycles(&files(tree, name)) {
            if cycle.len() > CYCLE_MAX {
                let why = format!(
                    "{} files import each other: {}",
                    cycle.len(),
                    cycle.join(", ")
                );
                offenders.push(Offender::new(&format!("crates/{name}/src"), 0, why));
            }
        }
    }
    offenders
}

/// The first part of a module's path: its folder, or itself at the crate's root.
fn folder(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// The modules of a crate, each with those that it imports from.
fn files(tree: &Tree, name: &str) -> Graph {
    let src = format!("crates/{name}/src/");
    let sources = tree
        .rust()
        .filter_map(|file| Some((module(file.path.strip_prefix(&src)?)?, file)));
    let sources: BTreeMap<String, &Source> = sources.collect();
    let imports = |(module, file): (&String, &&Source)| {
        let is_parent = file.path.ends_with("/mod.rs");
        let own = |path: Vec<String>| resolve(&sources, &path).filter(|to| to != module);
        let all = paths(without_tests(&file.code), module, is_parent);
        (module.clone(), all.into_iter().filter_map(own).collect())
    };
    sources.iter().map(imports).collect()
}

/// `None` for files of tests. The root of the crate is called `lib`.
fn module(path: &str) -> Option<String> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_test = path.split('/').any(|part| part.ends_with("tests"));
    (!is_test).then(|| path.replace('/', "::"))
}

/// The module that a path leads to; the crate's root if it is none of the others.
fn resolve(modules: &BTreeMap<String, &Source>, path: &[String]) -> Option<String> {
    let prefixes = (1..=path.len()).rev().map(|n| path[..n].join("::"));
    let mut known = prefixes.filter(|prefix| modules.contains_key(prefix));
    known.next().or_else(|| Some("lib".into()))
}

fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod ").next().unwrap_or(code)
}

/// All paths of the code that begin with `crate` or `super`, with the lists in braces unfolded.
fn paths(code: &str, module: &str, is_parent: bool) -> Vec<Vec<String>> {
    let mut own: Vec<String> = module.split("::").map(String::from).collect();
    if !is_parent {
        own.pop();
    }
    let mut found = Vec::new();
    for (word, drop) in [("crate::", own.len()), ("super::", 1)] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].bytes().next_back();
            if before.is_some_and(|b| is_ident(b) || b == b':') || drop > own.len() {
                continue;
            }
            let base = match word {
                "crate::" => Vec::new(),
                _ if is_parent => own[..own.len() - 1].to_vec(),
                _ => own.clone(),
            };
            unfold(
                &mut code[at + word.len()..].bytes().peekable(),
                base,
                &mut found,
            );
        }
    }
    found
}

type Bytes<'a> = std::iter::Peekable<std::str::Bytes<'a>>;

/// Reads one path, or a list of them in braces, that continues `base`.
fn unfold(rest: &mut Bytes<'_>, base: Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut path = base;
    loop {
        while rest.next_if(u8::is_ascii_whitespace).is_some() {}
        if rest.next_if_eq(&b'{').is_some() {
            while rest.peek().is_some() && rest.next_if_eq(&b'}').is_none() {
                unfold(rest, path.clone(), found);
                let between = |b: &u8| !matches!(b, b',' | b'}');
                while rest.next_if(between).is_some() {}
                rest.next_if_eq(&b',');
                while rest.next_if(u8::is_ascii_whitespace).is_some() {}
            }
            return;
        }
        let mut name = String::new();
        while let Some(byte) = rest.next_if(|b| is_ident(*b)) {
            name.push(byte.into());
        }
        if !matches!(name.as_str(), "" | "self") {
            path.push(name);
        }
        if rest.next_if_eq(&b':').is_none() || rest.next_if_eq(&b':').is_none() {
            break;
        }
    }
    found.push(path);
}

/// The sets of nodes that all reach each other, where they are more than one node.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = graph
        .keys()
        .map(|from| (from, reached(graph, from)))
        .collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for from in graph.keys() {
        let back = |to: &&&String| reach.get(**to).is_some_and(|all| all.contains(from));
        let cycle: Vec<String> = reach[from]
            .iter()
            .filter(back)
            .map(|to| (*to).clone())
            .collect();
        if cycle.len() > 1 && !found.contains(&cycle) {
            found.push(cycle);
        }
    }
    found
}

fn reached<'g>(graph: &'g Graph, from: &String) -> BTreeSet<&'g String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[from].iter().collect();
    while let Some(node) = next.pop() {
        if reached.insert(node) {
            next.extend(graph.get(node).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    fn judge(files: &[(&str, &str)]) -> (usize, usize) {
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|(path, text)| (format!("crates/client/src/{path}"), *text))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
        let tree = tree(&files);
        (folder_cycle(&tree).len(), file_cycle(&tree).len())
    }

    #[test]
    fn layers_import_what_is_below_them() {
        let one_way = [
            ("lib.rs", "mod low;\nmod high;\npub use high::a;\n"),
            ("low/mod.rs", "pub mod x;\npub mod y;\n"),
            ("low/x.rs", "use super::y;\n"),
            ("low/y.rs", "use crate::low::x;\n"),
            ("high/a.rs", "use crate::low::{self, x::{One, Two}, y};\n"),
        ];
        assert_eq!(judge(&one_way), (0, 0));
    }

    #[test]
    fn a_folder_that_looks_up_is_found() {
        let in_a_use = [
            ("low/x.rs", "use crate::{\n    high::a,\n};\n"),
            ("high/a.rs", "use crate::low::x;\n"),
        ];
        assert_eq!(judge(&in_a_use).0, 1);
        let in_the_code = [
            ("low/x.rs", "fn f() { crate::high::a::g() }\n"),
            ("high/a.rs", "use crate::low::x;\n"),
        ];
        assert_eq!(judge(&in_the_code).0, 1);
        let by_the_root = [
            ("lib.rs", "pub use crate::high::a::Name;\n"),
            ("low/x.rs", "use crate::Name;\n"),
            ("high/a.rs", "use crate::low::x;\n"),
        ];
        assert_eq!(judge(&by_the_root).0, 1);
    }

    #[test]
    fn a_circle_of_four_files_is_found_and_tests_may_look_anywhere() {
        let ring = |n: usize| {
            let path = |i: usize| format!("low/f{i}.rs");
            let text = |i: usize| format!("use super::f{};\n", (i + 1) % n);
            let files: Vec<(String, String)> = (0..n).map(|i| (path(i), text(i))).collect();
            let files: Vec<(&str, &str)> = files
                .iter()
                .map(|(p, t)| (p.as_str(), t.as_str()))
                .collect();
            judge(&files)
        };
        assert_eq!(ring(3), (0, 0));
        assert_eq!(ring(4), (0, 1));
        let tests = [
            (
                "low/x.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::high::a;\n}\n",
            ),
            ("low/x_tests.rs", "use crate::high::a;\n"),
            ("high/a.rs", "use crate::low::x;\n"),
        ];
        assert_eq!(judge(&tests), (0, 0));
    }
}
