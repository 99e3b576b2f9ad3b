//! The report as pictures.
//!
//! Invariant: all bars of a picture share one logarithmic axis; the line at 1 is plain tmpfs.

use crate::error::{Error, Result};
use crate::peers::BASE;
use crate::report::{Figure, Report, title};
use crate::rows::Jobs;
use plotters::prelude::*;
use std::path::Path;

const ROW_HEIGHT: i32 = 14;
const LEFT: i32 = 210;
const WIDTH: i32 = 900;
const TOP: i32 = 60;

/// Writes one picture for each way of sharing the work: `files-1.svg`, `files-2t.svg`, ...
pub fn write(report: &Report, dir: &Path) -> Result<()> {
    for jobs in Jobs::ALL {
        let path = dir.join(format!("files-{}.svg", jobs.name()));
        if report.rows(jobs).next().is_some() {
            draw(report, jobs, &path)
                .map_err(|e| Error::Failed(format!("draw {}: {e}", path.display())))?;
        }
    }
    Ok(())
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(report: &Report, jobs: Jobs, path: &Path) -> Drawn {
    let others: Vec<&str> = report
        .peers
        .iter()
        .copied()
        .filter(|p| *p != BASE)
        .collect();
    let rows: Vec<&str> = report.rows(jobs).map(|row| row.name).collect();
    let step = ROW_HEIGHT * others.len() as i32 + 10;
    let height = TOP + step * rows.len() as i32 + 30;
    let root = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = ("sans-serif", 12).into_font();
    let caption = format!("Time as a ratio to plain tmpfs, {}: median", jobs.title());
    root.draw_text(
        &caption,
        &("sans-serif", 16).into_text_style(&root),
        (10, 8),
    )?;
    for (i, peer) in others.iter().enumerate() {
        let x = 10 + 130 * i as i32;
        root.draw(&Rectangle::new([(x, 34), (x + 10, 44)], colour(i).filled()))?;
        root.draw(&Text::new((*peer).to_owned(), (x + 14, 33), text.clone()))?;
    }
    for tick in [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0] {
        let x = place(tick);
        let shade = if tick == 1.0 {
            BLACK.mix(0.8)
        } else {
            BLACK.mix(0.15)
        };
        root.draw(&PathElement::new(vec![(x, TOP), (x, height - 30)], shade))?;
        root.draw(&Text::new(
            format!("{tick}"),
            (x - 8, height - 25),
            text.clone(),
        ))?;
    }
    for (r, row) in rows.iter().enumerate() {
        let y = TOP + step * r as i32;
        root.draw(&Text::new(
            title(row).to_owned(),
            (10, y + step / 2 - 10),
            text.clone(),
        ))?;
        for (i, peer) in others.iter().enumerate() {
            let Some(ratio) = report.ratio((row, jobs), peer, BASE, Figure::Median) else {
                continue;
            };
            let y = y + ROW_HEIGHT * i as i32;
            let to = place(ratio.median);
            root.draw(&Rectangle::new(
                [(LEFT, y), (to, y + 11)],
                colour(i).filled(),
            ))?;
            let label = Text::new(format!("{:.2}", ratio.median), (to + 4, y), text.clone());
            root.draw(&label)?;
        }
    }
    root.present()?;
    Ok(())
}

/// Where a ratio lies on the axis.
fn place(ratio: f64) -> i32 {
    let decades = (ratio.clamp(0.01, 30.0) / 0.01).log10() / 3000f64.log10();
    LEFT + ((WIDTH - LEFT - 60) as f64 * decades) as i32
}

fn colour(i: usize) -> RGBColor {
    const COLOURS: [RGBColor; 7] = [
        RGBColor(0, 90, 160),
        RGBColor(60, 150, 210),
        RGBColor(150, 200, 235),
        RGBColor(120, 120, 120),
        RGBColor(200, 140, 40),
        RGBColor(150, 60, 60),
        RGBColor(60, 130, 60),
    ];
    COLOURS[i % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_is_logarithmic_and_bounded() {
        let decade = place(0.1) - place(0.01);
        assert!(((place(1.0) - place(0.1)) - decade).abs() <= 1);
        assert_eq!(place(0.0), LEFT);
        assert_eq!(place(1e9), place(30.0));
    }
}
