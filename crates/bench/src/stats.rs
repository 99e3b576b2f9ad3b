//! Figures from samples.
//!
//! Invariant: an empty set has no figure; nothing divides by zero.

/// What one measurement of one row says, in nanoseconds per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    pub median: f64,
    pub mean: f64,
    pub p99: f64,
}

/// The `q` quantile (0 to 1) of the values, by nearest rank.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// The middle value; the mean of the middle two when there is an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    let high = *sorted.get(mid)?;
    if sorted.len() % 2 == 1 {
        Some(high)
    } else {
        Some((sorted[mid - 1] + high) / 2.0)
    }
}

/// A figure over rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Over what there is.
    pub fn of(values: &[f64]) -> Option<Spread> {
        Some(Spread {
            median: median(values)?,
            min: values.iter().copied().reduce(f64::min)?,
            max: values.iter().copied().reduce(f64::max)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&hundred, 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        let spread = Spread::of(&[2.0, 1.0, 9.0]).unwrap();
        assert_eq!(
            spread,
            Spread {
                median: 2.0,
                min: 1.0,
                max: 9.0
            }
        );
    }
}
