//! Rules about what depends on what, read from `cargo metadata`. Dependencies point from the
//! faces down to `pmem`; `client` and `service` never meet, not even in tests.

use super::{Offender, Tree};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What one crate may depend on.
struct Allowed {
    name: &'static str,
    /// Crates of this workspace.
    inside: &'static [&'static str],
    /// Outside crates; `None` where they are a matter for review. What runs inside other people's
    /// programs, and what is shared with it, has a list.
    outside: Option<&'static [&'static str]>,
}

const fn allow(
    name: &'static str,
    inside: &'static [&'static str],
    outside: Option<&'static [&'static str]>,
) -> Allowed {
    Allowed {
        name,
        inside,
        outside,
    }
}

const ALLOWED: &[Allowed] = &[
    // shuttle: with a feature that no program has.
    allow(
        "pmem",
        &[],
        Some(&["rustix", "bitflags", "crc-fast", "shuttle"]),
    ),
    allow("pool", &["pmem"], Some(&["bitflags", "crc-fast"])),
    allow("client", &["pool", "pmem"], Some(&["rustix", "bitflags"])),
    allow(
        "preload",
        &["client", "pool", "pmem"],
        Some(&["rustix", "bitflags", "iced-x86"]),
    ),
    allow("service", &["pool", "pmem"], None),
    // Whoever saves or restores has threads of its own; it never runs inside of programs.
    allow("stream", &["pool", "pmem"], Some(&["zstd"])),
    allow("proxy", &["client", "pool", "pmem"], None),
    allow("btt", &[], Some(&[])),
    allow(
        "holdfast",
        &["btt", "client", "pool", "pmem"],
        Some(&["rustix"]),
    ),
    allow("bench", &["holdfast", "client", "pool", "pmem"], None),
    allow(
        "cli",
        &[
            "holdfast", "status", "stream", "client", "proxy", "service", "pool", "pmem",
        ],
        None,
    ),
    allow("manual", &["cli"], None),
    allow("status", &["holdfast", "pool"], None),
    allow("export", &["holdfast", "client", "status"], None),
    allow("nbdkit", &["holdfast", "status"], None),
    allow("c", &["holdfast"], None),
    allow("python", &["holdfast"], None),
    allow("cuts", &["holdfast"], None),
    allow("e2e", &[], None),
    allow(
        "fuzz",
        &[
            "btt",
            "fuzz-objects",
            "client",
            "proxy",
            "service",
            "stream",
            "pool",
            "pmem",
        ],
        None,
    ),
    allow("fuzz-objects", &[], None),
    allow(
        "model",
        &["fuzz", "client", "service", "pool", "pmem"],
        None,
    ),
    allow("power", &["btt", "client", "service", "pool", "pmem"], None),
    allow("death", &["client", "service", "pool", "pmem"], None),
];

/// A crate of ours by its short name; the library for programs has the name of the whole.
fn short_name(name: &str) -> Option<&str> {
    match name {
        "holdfast" => Some(name),
        name => name.strip_prefix("holdfast-"),
    }
}

fn allowed_for(member: &Crate) -> Option<&'static Allowed> {
    let short = short_name(&member.name)?;
    ALLOWED.iter().find(|allowed| allowed.name == short)
}

/// One crate of the workspace and what it depends on.
#[derive(Debug, Clone)]
struct Crate {
    name: String,
    manifest: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone)]
struct Dependency {
    name: String,
    /// Only for tests, examples and benches.
    dev: bool,
}

/// Crates of the workspace depend on each other in one direction.
pub fn direction(tree: &Tree) -> Vec<Offender> {
    with_crates(&tree.root, judge_direction)
}

/// Crates that run inside other people's programs use only outside crates from a list.
pub fn outside(tree: &Tree) -> Vec<Offender> {
    with_crates(&tree.root, judge_outside)
}

fn with_crates(root: &Path, judge: fn(&[Crate]) -> Vec<Offender>) -> Vec<Offender> {
    match metadata(root) {
        Ok(crates) => judge(&crates),
        Err(why) => vec![Offender::new("Cargo.toml", 0, why)],
    }
}

fn metadata(root: &Path) -> Result<Vec<Crate>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata cannot be run: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let json: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("cargo metadata gives no JSON: {e}"))?;
    let packages = json["packages"]
        .as_array()
        .ok_or("cargo metadata names no packages")?;
    Ok(packages
        .iter()
        .map(|package| read_crate(package, root))
        .collect())
}

fn read_crate(package: &Value, root: &Path) -> Crate {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let manifest = text(&package["manifest_path"]);
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    Crate {
        name: text(&package["name"]),
        manifest: manifest
            .strip_prefix(&format!("{}/", root.display()))
            .unwrap_or(&manifest)
            .to_string(),
        dependencies: dependencies
            .map(|d| Dependency {
                name: text(&d["name"]),
                dev: d["kind"] == "dev",
            })
            .collect(),
    }
}

fn judge_direction(crates: &[Crate]) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for member in crates {
        let Some(short) = short_name(&member.name) else {
            continue;
        };
        let Some(allowed) = allowed_for(member) else {
            let why = format!(
                "{} has no line in the table of xtask/src/tidy/deps.rs",
                member.name
            );
            offenders.push(Offender::new(&member.manifest, 0, why));
            continue;
        };
        for dependency in &member.dependencies {
            let Some(other) = short_name(&dependency.name) else {
                continue;
            };
            let boundary = matches!(
                (short, other),
                ("client", "service") | ("service", "client")
            );
            // Tests may put both sides of the trust boundary into one process.
            if !dependency.dev && (boundary || !allowed.inside.contains(&other)) {
                let why = format!("{short} may not depend on {other}");
                offenders.push(Offender::new(&member.manifest, 0, why));
            }
        }
    }
    offenders
}

fn judge_outside(crates: &[Crate]) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for member in crates {
        let Some(Allowed {
            name: short,
            outside: Some(allowed),
            ..
        }) = allowed_for(member)
        else {
            continue;
        };
        for dependency in member.dependencies.iter().filter(|d| !d.dev) {
            let name = dependency.name.as_str();
            if !name.starts_with("holdfast-") && !allowed.contains(&name) {
                let why = format!("{short} may use {}, not {name}", allowed.join(", "));
                offenders.push(Offender::new(&member.manifest, 0, why));
            }
        }
    }
    offenders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, uses: &[&str], dev_uses: &[&str]) -> Crate {
        let list = |names: &[&str], dev| -> Vec<Dependency> {
            names
                .iter()
                .map(|name| Dependency {
                    name: (*name).into(),
                    dev,
                })
                .collect()
        };
        let dependencies = [list(uses, false), list(dev_uses, true)].concat();
        Crate {
            name: name.into(),
            manifest: "Cargo.toml".into(),
            dependencies,
        }
    }

    fn why(offenders: Vec<Offender>) -> Vec<String> {
        offenders.into_iter().map(|o| o.why).collect()
    }

    #[test]
    fn dependencies_point_down() {
        let judge = |m: Crate| why(judge_direction(&[m]));
        assert_eq!(
            judge(member("holdfast-client", &["holdfast-pool"], &[])),
            [""; 0]
        );
        assert_eq!(
            judge(member("holdfast-pool", &["holdfast-client"], &[])),
            ["pool may not depend on client"]
        );
        assert_eq!(
            judge(member("holdfast-pmem", &["holdfast-pool"], &[])),
            ["pmem may not depend on pool"]
        );
        assert_eq!(
            judge(member("holdfast-preload", &["holdfast-service"], &[])),
            ["preload may not depend on service"]
        );
    }

    #[test]
    fn client_and_service_never_meet() {
        for (one, other) in [("client", "service"), ("service", "client")] {
            let (name, uses) = (format!("holdfast-{one}"), format!("holdfast-{other}"));
            let said = [format!("{one} may not depend on {other}")];
            assert_eq!(why(judge_direction(&[member(&name, &[&uses], &[])])), said);
            // But their tests may.
            assert_eq!(judge_direction(&[member(&name, &[], &[&uses])]), []);
        }
    }

    #[test]
    fn a_new_crate_needs_a_line() {
        assert_eq!(
            judge_direction(&[member("holdfast-new", &[], &[])]).len(),
            1
        );
        assert_eq!(
            judge_direction(&[member("xtask", &["serde_json"], &[])]),
            []
        );
    }

    #[test]
    fn outside_crates_are_listed() {
        let judge = |m: Crate| why(judge_outside(&[m]));
        assert_eq!(
            judge(member("holdfast-client", &["rustix"], &["proptest"])),
            [""; 0]
        );
        assert_eq!(
            judge(member("holdfast-client", &["libc"], &[])),
            ["client may use rustix, bitflags, not libc"]
        );
        assert_eq!(judge(member("holdfast-cli", &["libc"], &[])), [""; 0]);
    }

    #[test]
    fn the_workspace_itself_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask has a parent");
        let crates = metadata(root).expect("cargo metadata works here");
        let client = crates
            .iter()
            .find(|c| c.name == "holdfast-client")
            .expect("there is one");
        assert_eq!(client.manifest, "crates/client/Cargo.toml");
        assert!(
            client
                .dependencies
                .iter()
                .any(|d| d.name == "holdfast-pool")
        );
    }
}
