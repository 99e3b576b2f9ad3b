//! What would help a program whose mappings of files were watched (`map explain`).
//!
//! Invariants: all of it follows from what was counted and timed in that run, and from the time of
//! a fault on this machine; advice that would not save a hundredth of the program's processor time
//! is not given, and where none is, that is said.

use holdfast_client::MapSettings;
use holdfast_client::map_record::{SUMS, Sum};

/// What was counted and timed.
#[derive(Clone, Debug)]
pub struct Facts {
    pub sums: [u64; SUMS],
    /// Processor time of all programs, of the run, and of one fault.
    pub cpu_ns: u64,
    pub wall_ns: u64,
    pub fault_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// What was done for the mappings meanwhile.
    pub map: Option<MapSettings>,
    /// Files of memory that were mapped by small pages, with so many faults.
    pub files: Vec<(String, u64)>,
}

/// Something that would help, or that nothing would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// One word for it.
    pub what: &'static str,
    /// What to write on the command line, if anything.
    pub command: String,
    pub sentence: String,
    /// Faults and time that it would spare.
    pub faults: u64,
    pub ns: u64,
}

/// Of the processor time, one in so many must be spared.
const WORTH: u64 = 100;
/// What a mapping costs that is given out again.
const HIT_NS: u64 = 1000;
/// What one fault maps at most, by small pages.
const BLOCK: u64 = 64 << 10;
/// Small faults that one of a huge page replaces.
const PER_HUGE: u64 = 32;
/// Names in a command.
const NAMED: usize = 4;

impl Facts {
    pub fn get(&self, sum: Sum) -> u64 {
        self.sums[sum as usize]
    }

    /// What the calls and the faults took.
    pub fn cost_ns(&self) -> u64 {
        self.get(Sum::MapNs) + self.get(Sum::UnmapNs) + self.faults_ns(self.get(Sum::Faults))
    }

    pub fn faults_ns(&self, faults: u64) -> u64 {
        faults.saturating_mul(self.fault_ns)
    }

    fn is_worth(&self, ns: u64) -> bool {
        ns > 0 && ns.saturating_mul(WORTH) >= self.cpu_ns
    }

    /// What mappings that are given out again would spare: how many, faults and time.
    fn spared(&self, [hits, ns, faults]: [Sum; 3]) -> (u64, u64, u64) {
        let (hits, faults) = (self.get(hits), self.get(faults));
        let ns = (self.get(ns) + self.faults_ns(faults)).saturating_sub(hits * HIT_NS);
        (hits, faults, ns)
    }
}

/// All advice, that which spares the most first.
pub fn advice(f: &Facts) -> Vec<Advice> {
    let kinds = [cache(f), larger(f), ahead(f), warm(f), reader(f), pool(f)];
    let mut list: Vec<Advice> = kinds.into_iter().flatten().collect();
    list.sort_by_key(|advice| u64::MAX - advice.ns);
    if list.is_empty() {
        list.push(nothing(f));
    }
    list.extend(off(f));
    list
}

fn ms(ns: u64) -> String {
    match ns {
        ..=9_999_999 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

fn gain(f: &Facts, faults: u64, ns: u64) -> String {
    format!("about {faults} faults and {} of {}", ms(ns), ms(f.cpu_ns))
}

/// A cache of mappings with the limits that a run has by itself.
fn cache(f: &Facts) -> Option<Advice> {
    let (hits, faults, ns) = f.spared([Sum::Hits, Sum::HitNs, Sum::HitFaults]);
    let wanted = f.map.is_none() && f.is_worth(ns);
    wanted.then(|| Advice {
        what: "map",
        command: "holdfast run --map".into(),
        sentence: format!(
            "{hits} of {} mappings would be given out again, which spares {}",
            f.get(Sum::Maps),
            gain(f, faults, ns)
        ),
        faults,
        ns,
    })
}

/// One that holds all that is mapped again.
fn larger(f: &Facts) -> Option<Advice> {
    let (few, few_faults, few_ns) = f.spared([Sum::Hits, Sum::HitNs, Sum::HitFaults]);
    let (hits, faults, ns) = f.spared([Sum::AllHits, Sum::AllHitNs, Sum::AllHitFaults]);
    let more = ns.saturating_sub(few_ns);
    let wanted = hits > few + few / 10 && f.is_worth(more);
    wanted.then(|| {
        let mib = f.get(Sum::IdleBytes).div_ceil(1 << 20).max(1);
        let entries = f.get(Sum::IdleMappings).clamp(1024, 4096);
        Advice {
            what: "cache",
            command: format!("holdfast run --map=cache={mib}M,entries={entries}"),
            sentence: format!(
                "{hits} mappings would be given out again and not {few}, if all were kept: \
                 that spares {} more",
                gain(f, faults.saturating_sub(few_faults), more)
            ),
            faults: faults.saturating_sub(few_faults),
            ns: more,
        }
    })
}

/// Pages that are mapped before the program comes there.
fn ahead(f: &Facts) -> Option<Advice> {
    let faults = f.get(Sum::InOrderBytes) / BLOCK;
    let faults = faults.min(f.get(Sum::Faults));
    let ns = f.faults_ns(faults);
    let wanted = f.map.is_none() && f.is_worth(ns);
    wanted.then(|| Advice {
        what: "ahead",
        command: "holdfast run --map".into(),
        sentence: format!(
            "{} mappings of 8 MB and more were read in order; a helper takes up to {} off \
             the program, while a core is free",
            f.get(Sum::InOrder),
            gain(f, faults, ns)
        ),
        faults,
        ns,
    })
}

/// Huge pages under files of memory.
fn warm(f: &Facts) -> Option<Advice> {
    let small = f.get(Sum::FaultsSmall);
    let faults = small - small / PER_HUGE;
    let ns = f.faults_ns(faults);
    let wanted = f.is_worth(ns) && !f.files.is_empty();
    wanted.then(|| {
        let names: Vec<&str> = f.files.iter().map(|(name, _)| name.as_str()).collect();
        let more = if names.len() > NAMED { " ..." } else { "" };
        let shown = names[..names.len().min(NAMED)].join(" ");
        Advice {
            what: "warm",
            command: format!("holdfast warm {shown}{more}, then holdfast run --map"),
            sentence: format!(
                "files in memory were mapped by small pages; with huge ones, which a pool has by \
                 itself, that spares {}",
                gain(f, faults, ns)
            ),
            faults,
            ns,
        }
    })
}

/// What a mapping cost on the average, of so many.
fn share(f: &Facts, mappings: u64) -> u64 {
    let all = f.get(Sum::Maps).max(1);
    (u128::from(f.cost_ns()) * u128::from(mappings) / u128::from(all)) as u64
}

fn reader(f: &Facts) -> Option<Advice> {
    let mappings = f.get(Sum::UnfitWriter);
    let ns = share(f, mappings);
    f.is_worth(ns).then(|| Advice {
        what: "read-only",
        command: String::new(),
        sentence: format!(
            "{mappings} of {} mappings are of files that are open for writing, and cannot be kept; \
             they took {}",
            f.get(Sum::Maps),
            ms(ns)
        ),
        faults: 0,
        ns,
    })
}

fn pool(f: &Facts) -> Option<Advice> {
    let mappings = f.get(Sum::UnfitSystem);
    let ns = share(f, mappings);
    f.is_worth(ns).then(|| Advice {
        what: "pool",
        command: "holdfast run --pool POOL --map".into(),
        sentence: format!(
            "{mappings} of {} mappings are of files on a file system whose mappings cannot be \
             kept, or without a name; they took {}; in a pool they could be",
            f.get(Sum::Maps),
            ms(ns)
        ),
        faults: 0,
        ns,
    })
}

fn nothing(f: &Facts) -> Advice {
    Advice {
        what: "nothing",
        command: String::new(),
        sentence: format!(
            "nothing would help much: mappings cost {} of {}",
            ms(f.cost_ns()),
            ms(f.cpu_ns)
        ),
        faults: 0,
        ns: 0,
    }
}

/// Why `--map` does nothing in some programs.
fn off(f: &Facts) -> Vec<Advice> {
    let why = [
        (
            Sum::StoppedFilter,
            "they set a filter of system calls (seccomp)",
        ),
        (
            Sum::StoppedLocked,
            "they lock all of their memory (mlockall)",
        ),
        (
            Sum::StoppedWatched,
            "they have their faults told (userfaultfd)",
        ),
        (
            Sum::StoppedUnseen,
            "they have system calls that could not be patched",
        ),
    ];
    let stopped = why.into_iter().filter(|(sum, _)| f.get(*sum) > 0);
    stopped
        .map(|(sum, why)| Advice {
            what: "off",
            command: String::new(),
            sentence: format!(
                "in {} of {} programs --map does nothing: {why}",
                f.get(sum),
                f.get(Sum::Programs)
            ),
            faults: 0,
            ns: 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(sums: &[(Sum, u64)]) -> Facts {
        let mut all = [0; SUMS];
        for (sum, n) in sums {
            all[*sum as usize] = *n;
        }
        Facts {
            sums: all,
            cpu_ns: 100_000_000,
            wall_ns: 120_000_000,
            fault_ns: 1000,
            minor_faults: 0,
            major_faults: 0,
            map: None,
            files: Vec::new(),
        }
    }

    fn kinds(f: &Facts) -> Vec<&'static str> {
        advice(f).iter().map(|advice| advice.what).collect()
    }

    #[test]
    fn little_is_worth_nothing() {
        assert_eq!(kinds(&facts(&[])), ["nothing"]);
        let hits = |n| {
            facts(&[
                (Sum::Maps, 2 * n),
                (Sum::Hits, n),
                (Sum::AllHits, n),
                (Sum::HitNs, 2000 * n),
                (Sum::AllHitNs, 2000 * n),
            ])
        };
        // What is spared is 1 us each; a hundredth is 1 ms.
        assert_eq!(kinds(&hits(999)), ["nothing"]);
        assert_eq!(kinds(&hits(1000)), ["map"]);
        let map = Some(MapSettings::DEFAULT);
        assert_eq!(kinds(&Facts { map, ..hits(1000) }), ["nothing"]);
    }

    #[test]
    fn a_larger_cache_is_as_large_as_what_was_idle() {
        let f = facts(&[
            (Sum::Hits, 100),
            (Sum::AllHits, 2000),
            (Sum::AllHitFaults, 20_000),
            (Sum::IdleBytes, (3 << 30) + 1),
            (Sum::IdleMappings, 3000),
        ]);
        let list = advice(&f);
        assert_eq!(
            list[0].command,
            "holdfast run --map=cache=3073M,entries=3000"
        );
        assert_eq!(list[0].faults, 20_000);
    }

    #[test]
    fn what_spares_the_most_comes_first_and_why_nothing_is_done_last() {
        let mut f = facts(&[
            (Sum::Maps, 10),
            (Sum::Faults, 10_000),
            (Sum::FaultsSmall, 9600),
            (Sum::InOrder, 1),
            (Sum::InOrderBytes, 2000 << 16),
            (Sum::UnfitWriter, 1),
            (Sum::StoppedLocked, 1),
        ]);
        f.files = vec![("/dev/shm/a".into(), 9600)];
        assert_eq!(kinds(&f), ["warm", "ahead", "read-only", "off"]);
        assert_eq!(advice(&f)[0].faults, 9300);
    }
}
