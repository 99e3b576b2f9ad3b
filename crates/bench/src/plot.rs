//! Reports as pictures.
//!
//! Invariant: all bars of a picture share one logarithmic axis; the line at 1 is what the picture
//! compares with.

use crate::error::{Error, Result};
use crate::peers::BASE;
use crate::report::{Figure, Report, title};
use crate::rows::Jobs;
use crate::sheet::Sheet;
use plotters::prelude::*;
use std::path::Path;

const ROW_HEIGHT: i32 = 14;
const LEFT: i32 = 240;
const WIDTH: i32 = 900;
const LEGEND: i32 = 130;
const TOP: i32 = 60;

/// Bars in groups; a bar that is missing was not measured.
struct Picture {
    caption: String,
    series: Vec<String>,
    rows: Vec<(String, Vec<Option<f64>>)>,
}

/// Writes one picture for each way of sharing the work: `files-1.svg`, `files-2t.svg`, ...
pub fn write(report: &Report, dir: &Path) -> Result<()> {
    for jobs in Jobs::ALL {
        let series: Vec<&str> = report
            .peers
            .iter()
            .copied()
            .filter(|p| *p != BASE)
            .collect();
        let ratio = |row: &str, peer: &str| {
            let ratio = report.ratio((row, jobs), peer, BASE, Figure::Median)?;
            Some(ratio.median)
        };
        let bars = |row: &str| series.iter().map(|peer| ratio(row, peer)).collect();
        let picture = Picture {
            caption: format!("Time as a ratio to plain tmpfs, {}: median", jobs.title()),
            rows: report
                .rows(jobs)
                .map(|row| (title(row.name).to_owned(), bars(row.name)))
                .collect(),
            series: series.iter().map(|peer| (*peer).to_owned()).collect(),
        };
        save(&picture, &dir.join(format!("files-{}.svg", jobs.name())))?;
    }
    Ok(())
}

/// Writes one picture for each group of a sheet: `kv-100b.svg`, ...
pub fn write_sheet(sheet: &Sheet, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(Error::io(dir.display()))?;
    let Some((figure, _)) = sheet.sections.first() else {
        return Ok(());
    };
    for group in &sheet.groups {
        let ratio = |row: &str, peer: &str| {
            let at = (group.name, row, *figure);
            Some(sheet.ratio(at, peer, sheet.base)?.median)
        };
        let bars = |row: &str| sheet.peers.iter().map(|peer| ratio(row, peer)).collect();
        let picture = Picture {
            caption: format!(
                "Time as a ratio to {}, {}: median",
                sheet.base.join(" or "),
                group.title
            ),
            rows: sheet
                .rows_with(group.name, figure)
                .iter()
                .map(|row| (row.title.to_owned(), bars(row.name)))
                .collect(),
            series: sheet.peers.clone(),
        };
        let name = format!("{}-{}.svg", sheet.benchmark, group.name);
        save(&picture, &dir.join(name))?;
    }
    Ok(())
}

fn save(picture: &Picture, path: &Path) -> Result<()> {
    if picture.rows.is_empty() {
        return Ok(());
    }
    draw(picture, path).map_err(|e| Error::Failed(format!("draw {}: {e}", path.display())))
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(picture: &Picture, path: &Path) -> Drawn {
    let step = ROW_HEIGHT * picture.series.len() as i32 + 10;
    let height = TOP + step * picture.rows.len() as i32 + 30;
    let width = WIDTH.max(20 + LEGEND * picture.series.len() as i32);
    let root = SVGBackend::new(path, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = ("sans-serif", 12).into_font();
    let large = ("sans-serif", 16).into_text_style(&root);
    root.draw_text(&picture.caption, &large, (10, 8))?;
    for (i, name) in picture.series.iter().enumerate() {
        let x = 10 + LEGEND * i as i32;
        root.draw(&Rectangle::new([(x, 34), (x + 10, 44)], colour(i).filled()))?;
        root.draw(&Text::new(name.clone(), (x + 14, 33), text.clone()))?;
    }
    for tick in [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0] {
        let x = place(tick);
        let shade = BLACK.mix(if tick == 1.0 { 0.8 } else { 0.15 });
        root.draw(&PathElement::new(vec![(x, TOP), (x, height - 30)], shade))?;
        let label = Text::new(format!("{tick}"), (x - 8, height - 25), text.clone());
        root.draw(&label)?;
    }
    for (r, (title, bars)) in picture.rows.iter().enumerate() {
        let y = TOP + step * r as i32;
        let label = Text::new(title.clone(), (10, y + step / 2 - 10), text.clone());
        root.draw(&label)?;
        for (i, ratio) in bars.iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let y = y + ROW_HEIGHT * i as i32;
            let to = place(*ratio);
            root.draw(&Rectangle::new(
                [(LEFT, y), (to, y + 11)],
                colour(i).filled(),
            ))?;
            root.draw(&Text::new(format!("{ratio:.2}"), (to + 4, y), text.clone()))?;
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
    const COLOURS: [RGBColor; 8] = [
        RGBColor(0, 90, 160),
        RGBColor(60, 150, 210),
        RGBColor(150, 200, 235),
        RGBColor(120, 120, 120),
        RGBColor(200, 140, 40),
        RGBColor(150, 60, 60),
        RGBColor(60, 130, 60),
        RGBColor(130, 70, 160),
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

    #[test]
    fn a_sheet_gives_a_picture_of_each_group_with_figures() {
        let dir = std::env::temp_dir().join(format!("holdfast-plot.{}", std::process::id()));
        write_sheet(&crate::sheet::tests::sheet(), &dir).unwrap();
        let picture = std::fs::read_to_string(dir.join("kv-g.svg")).unwrap();
        assert!(
            picture.contains("values") && picture.contains("0.57"),
            "{picture}"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
